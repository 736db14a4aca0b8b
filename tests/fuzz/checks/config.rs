//! What must hold for any text given as a config file: a config that keeps the rules, or problems that can be shown.
//! One function for the fuzzer, for the replay of its corpus on stable, and for the property tests.

use evermux_config::{Condition, HandleRule, MOST_HANDLE_RULES, parse};

/// Panics if `input` is treated wrongly. What is no text is refused before it comes to the parser.
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse(text) {
        Ok(config) => {
            for (name, upstream) in &config.upstreams {
                assert_eq!(name, &upstream.name);
                assert!(upstream.url.host_str().is_some() && upstream.url.username().is_empty());
                assert!(upstream.handles.len() <= MOST_HANDLE_RULES);
                upstream.handles.iter().for_each(check_rule);
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
            assert!(lines.is_sorted(), "{problems:?}");
            for problem in &problems {
                let shown = problem.to_string();
                assert!(!shown.contains(|c: char| c.is_control()), "{shown:?}");
            }
        }
    }
}

fn check_rule(rule: &HandleRule) {
    let HandleRule { born, used, settled, ttl } = rule;
    assert!(!ttl.is_zero());
    for tools in [&born.tools, &used.tools] {
        assert!(!tools.is_empty() && !tools.contains(""));
    }
    let matters = |condition: &Condition| condition.pointer.starts_with('/') && !condition.any_of.is_empty();
    assert!(born.pointer.starts_with('/') && used.argument.starts_with('/'));
    assert!(born.expires.as_ref().is_none_or(|pointer| pointer.starts_with('/')));
    assert!(born.when.iter().all(matters));
    assert!(settled.as_ref().is_none_or(|all| !all.is_empty() && all.iter().all(matters)));
}
