//! How a call asks for input where the server cannot send requests (2026-07-28, multi-round-trip requests): the call ends with what it
//! needs, and the client sends it again with the answers.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::asks::{AskArguments, declares, needed_capability};
use super::rpc::{Outcome, Params, RpcError};
use super::state::State;
use super::tools::structured;

const INPUT_REQUIRED: &str = r#"{"resultType":"input_required""#;

pub(super) fn is_input_required(result: &str) -> bool {
    result.starts_with(INPUT_REQUIRED)
}

fn arguments_of<'a>(params: &Params<'a>) -> AskArguments<'a> {
    params.arguments.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// Refuses a call whose client has not declared what the tool will ask for.
pub(super) fn check(method: &str, params: &Params<'_>) -> Result<(), (u16, RpcError)> {
    let is_ask = matches!(params.name.as_deref(), Some("ask" | "ask_on_get"));
    if method != "tools/call" || !is_ask {
        return Ok(());
    }
    let arguments = arguments_of(params);
    let Some(needed) = needed_capability(arguments.method(), arguments.params(0).as_deref()) else {
        return Ok(());
    };
    let declared = params.meta.as_ref().and_then(|meta| meta.client_capabilities).map_or("{}", RawValue::get);
    if declares(&format!(r#"{{"capabilities":{declared}}}"#), needed) {
        return Ok(());
    }
    let required = needed.rsplit('.').fold("{}".to_owned(), |inner, name| format!(r#"{{"{name}":{inner}}}"#));
    let error = RpcError::new(-32021, &format!("Missing required client capability: {needed}"));
    Err((400, error.with(format!(r#"{{"requiredCapabilities":{required}}}"#))))
}

/// The tool `ask`: asks on the first call, gives the raw answer on the second.
pub(super) fn ask(state: &mut State, params: &Params<'_>, raw: &str) -> Outcome {
    let answer = params.input_responses.as_ref().and_then(|answers| answers.get(&Cow::Borrowed("ask")));
    let Some(answer) = answer else {
        let number = state.input_required.len() + 1;
        let token = format!("state-{number}");
        state.input_required.insert(token.clone(), raw.to_owned());
        let arguments = arguments_of(params);
        let method = serde_json::Value::from(arguments.method());
        let asked = arguments.params(number).map_or_else(String::new, |raw| format!(r#","params":{raw}"#));
        return Ok(format!(
            r#"{INPUT_REQUIRED},"inputRequests":{{"ask":{{"method":{method}{asked}}}}},"requestState":"{token}"}}"#
        ));
    };
    let token = params.request_state.as_deref().unwrap_or_default();
    // The state is for this call only; on another one it is an attack or a mistake.
    if state.input_required.get(token).is_none_or(|arguments| arguments != raw) {
        return Err(RpcError::new(-32602, "Invalid requestState"));
    }
    Ok(structured(&format!(r#"{{"ask":"{token}","result":{}}}"#, answer.get())))
}
