//! What a server said at its handshake reaches clients of later processes as it was, without another handshake.

use evermux_testkit::Script;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::support::with_upstream;

/// Spellings that nothing which reads and writes JSON again would leave as they are.
const GREETING: &str = concat!(
    r#"{"protocolVersion":"VERSION" , "capabilities":{"tools":{"listChanged":true},"#,
    r#""experimental":{"limits":{"most":1e400,"whole":12345678901234567890123,"half":0.50,"minus":-0,"E":1E+02}}},"#,
    r#""serverInfo":{"title":"\u0053cripted \ud83d\ude00 \/ é","name":"scripted","version":"1.0","name2":"\t"},"#,
    r#""instructions":"one\n\u00e9\\ \"two\" \u2028 <b>","vendor/other":[ 1.0, null ,{"a":1,"a":2}]}"#
);

/// An InitializeResult without the one member that evermux adds.
#[track_caller]
fn without_meta(answer: &Answer) -> String {
    #[derive(Deserialize)]
    struct Result<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: &'a RawValue,
    }
    let text = answer.result();
    let meta = serde_json::from_str::<Result<'_>>(text).unwrap().meta.get();
    let member = format!(r#""_meta":{meta}"#);
    let (before, after) = text.split_once(&member).unwrap();
    match (before.strip_suffix(','), after.strip_prefix(',')) {
        (Some(before), _) => format!("{before}{after}"),
        (None, Some(after)) => format!("{before}{after}"),
        (None, None) => format!("{before}{after}"),
    }
}

#[test]
fn the_greeting_is_the_servers_own_in_every_process() {
    let betweens: [fn(&Harness) -> u32; 2] = [Harness::kill_daemon, crate::takeover::upgraded];
    for between in betweens {
        let script = Script { greeting: Some(GREETING.to_owned()), ..Script::default() };
        let (harness, upstream) = with_upstream(script);
        let mut first = harness.connect("up");
        let before = first.initialize(VERSION);
        assert_eq!(without_meta(&before), GREETING.replace("VERSION", VERSION));
        assert_eq!(count_of(&first.call("counter", "{}")), 1);
        between(&harness);
        let mut second = harness.connect("up");
        let after = second.initialize(VERSION);
        assert_eq!(without_meta(&after), without_meta(&before));
        assert_eq!(count_of(&second.call("counter", "{}")), 2);
        assert_eq!(upstream.initializes(), 1, "{}", upstream.summary());
        upstream.assert_no_violations();
    }
}
