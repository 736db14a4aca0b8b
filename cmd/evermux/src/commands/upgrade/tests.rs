//! The words and the JSON of what became of an upgrade.

use super::*;

fn standing(generation: u64, build: &str, left: u64) -> Standing {
    let (pid, version) = (u32::try_from(100 + generation).ok(), "0.1.0".to_owned());
    Standing { pid, version, build: Some(build.to_owned()), generation: Some(generation), left }
}

#[test]
fn says_what_is_true_now() {
    let from = standing(3, "0.1.0+aa", 0);
    let upgraded = |left, took_over| Outcome::Upgraded {
        from: from.clone(),
        to: standing(4, "0.2.0+bb", left),
        took_over,
    };
    assert_eq!(upgraded(0, true).words(), "upgraded: generation 3 → 4, pid 104, 0.2.0+bb");
    assert!(upgraded(1, true).words().ends_with("0.2.0+bb; 1 call still ends in the old process"));
    assert!(upgraded(2, true).words().ends_with("; 2 calls still end in the old process"));
    assert!(upgraded(2, false).words().starts_with("started: the daemon had ended meanwhile"));
    assert_eq!(Outcome::Same(from).words(), "the daemon (pid 103, 0.1.0+aa) already runs this build");
}

#[test]
fn json_tells_the_same() {
    let outcome = Outcome::Upgraded {
        from: standing(3, "0.1.0+aa", 0),
        to: standing(4, "0.2.0+bb", 2),
        took_over: true,
    };
    assert_eq!(
        outcome.to_json(),
        json!({
            "upgraded": true, "took_over": true, "calls_left": 2,
            "from": {"pid": 103, "version": "0.1.0", "build": "0.1.0+aa", "generation": 3},
            "daemon": {"pid": 104, "version": "0.1.0", "build": "0.2.0+bb", "generation": 4},
        })
    );
}
