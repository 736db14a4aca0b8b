//! A host on the SDK's client, driven over its own stdin and stdout with the steps of `tests/interop/client.mjs`; see there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use rmcp::model::{
    ClientConfig, ClientRequest, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion,
    ResourceUpdatedNotificationParam,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, NotificationContext, PeerRequestOptions, RequestContext,
    RunningService,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ErrorData, Peer, RoleClient, ServiceError, ServiceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::process::Command;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;

/// Connects, says so, and runs the steps until stdin ends.
pub(crate) async fn run(mode: &str, target: &[&str]) -> anyhow::Result<()> {
    let state = Arc::<State>::default();
    let mut service =
        connect(Host { config: config(mode)?, state: Arc::clone(&state) }, mode, target).await?;
    let info = service.peer().peer_info().context("no handshake")?;
    say(&json!({"ready": {"server": info.server_info, "capabilities": info.capabilities}}));
    let mut steps = JoinSet::new();
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let request: Value = serde_json::from_str(&line)?;
        steps.spawn(step(Arc::clone(&state), service.peer().clone(), request));
        while steps.try_join_next().is_some() {}
    }
    service.close().await?;
    Ok(())
}

fn config(mode: &str) -> anyhow::Result<ClientConfig> {
    let capabilities = if mode == "asks" { json!({"elicitation": {}, "sampling": {}}) } else { json!({}) };
    let info = json!({"name": "interop-rmcp", "version": "1"});
    let config = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info});
    Ok(serde_json::from_value(config)?)
}

async fn connect(
    host: Host,
    mode: &str,
    target: &[&str],
) -> anyhow::Result<RunningService<RoleClient, Host>> {
    if let [url] = target
        && url.starts_with("http://")
    {
        // No TLS here, but the HTTP library asks for it before its first request.
        rustls::crypto::ring::default_provider().install_default().ok();
        return Ok(host.serve(StreamableHttpClientTransport::from_uri(*url)).await?);
    }
    let (program, arguments) = target.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let server = TokioChildProcess::new(command)?;
    if mode == "probes" {
        let newest = vec![ProtocolVersion::V_2026_07_28];
        let lifecycle = ClientLifecycleMode::Auto { preferred_versions: newest, legacy_version: None };
        return Ok(host.serve_with_lifecycle(server, lifecycle).await?);
    }
    Ok(host.serve(server).await?)
}

fn say(message: &Value) {
    // Nobody is left to read if this fails; stdin is then about to end too.
    writeln!(std::io::stdout(), "{message}").ok();
}

/// What steps and messages from the server have in common.
#[derive(Default)]
struct State {
    /// Steps by progress token.
    listeners: Mutex<BTreeMap<String, Value>>,
    asks: Mutex<Vec<Option<oneshot::Sender<Value>>>>,
}

async fn step(state: Arc<State>, peer: Peer<RoleClient>, request: Value) {
    let step = &request["step"];
    let outcome = if request["do"] == "answer" {
        Ok(answer(&state, &request).await)
    } else {
        act(&state, &peer, &request).await
    };
    say(&match outcome {
        Ok(ok) => json!({"step": step, "ok": ok}),
        Err(ServiceError::McpError(error)) => json!({"step": step, "error": error}),
        Err(other) => json!({"step": step, "error": {"message": other.to_string()}}),
    });
}

/// The method and parameters of a step.
fn message(request: &Value) -> Value {
    let take = |members: &[(&str, &str)]| -> Value {
        members.iter().map(|(to, from)| ((*to).to_owned(), request[*from].clone())).collect()
    };
    let what = request["do"].as_str().unwrap_or_default();
    let (method, params) = match what {
        "list" => ("tools/list", json!({})),
        "call" => ("tools/call", take(&[("name", "tool"), ("arguments", "arguments")])),
        "resources" if request["cursor"].is_null() => ("resources/list", json!({})),
        "resources" => ("resources/list", take(&[("cursor", "cursor")])),
        "templates" => ("resources/templates/list", json!({})),
        "read" => ("resources/read", take(&[("uri", "uri")])),
        "subscribe" => ("resources/subscribe", take(&[("uri", "uri")])),
        "unsubscribe" => ("resources/unsubscribe", take(&[("uri", "uri")])),
        "prompts" => ("prompts/list", json!({})),
        "prompt" => ("prompts/get", take(&[("name", "name"), ("arguments", "arguments")])),
        "level" => ("logging/setLevel", take(&[("level", "level")])),
        "complete" => {
            let argument = take(&[("name", "argument"), ("value", "value")]);
            let prompt = json!({"type": "ref/prompt", "name": request["prompt"]});
            ("completion/complete", json!({"ref": prompt, "argument": argument}))
        }
        other => (other, json!({})),
    };
    json!({"method": method, "params": params})
}

async fn act(state: &State, peer: &Peer<RoleClient>, request: &Value) -> Result<Value, ServiceError> {
    let message: ClientRequest = typed(message(request)).map_err(ServiceError::McpError)?;
    let handle = {
        // Held over the sending: progress that comes at once finds its listener.
        let mut listeners = state.listeners.lock().await;
        let handle = peer.send_request_with_option(message, PeerRequestOptions::no_options()).await?;
        if request["progress"] == true {
            listeners.insert(json!(handle.progress_token).to_string(), request["step"].clone());
        }
        handle
    };
    let result = handle.await_response().await?;
    serde_json::to_value(result).map_err(|error| ServiceError::McpError(internal(error)))
}

async fn answer(state: &State, request: &Value) -> Value {
    let number = request["ask"].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or_default();
    let waiting = state.asks.lock().await.get_mut(number.wrapping_sub(1)).and_then(Option::take);
    if let Some(waiting) = waiting {
        waiting.send(request["result"].clone()).ok();
    }
    json!({})
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(internal)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// The host as the server sees it.
struct Host {
    config: ClientConfig,
    state: Arc<State>,
}

impl Host {
    /// Shows an ask to the test, and waits for the step that answers it.
    async fn ask<T: DeserializeOwned>(&self, method: &str, params: impl Serialize) -> Result<T, ErrorData> {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut asks = self.state.asks.lock().await;
            asks.push(Some(sender));
            asks.len()
        };
        say(&json!({"ask": number, "method": method, "params": params}));
        typed(receiver.await.map_err(internal)?)
    }
}

fn notice(method: &str, params: impl Serialize) {
    say(&json!({"notice": method, "params": params}));
}

impl ClientHandler for Host {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask("sampling/createMessage", params).await
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask("elicitation/create", params).await
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let listeners = self.state.listeners.lock().await;
        if let Some(step) = listeners.get(&json!(params.progress_token).to_string()) {
            say(&json!({"step": step, "progress": params.progress}));
        }
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        notice("notifications/message", params);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        notice("notifications/resources/updated", params);
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        notice("notifications/resources/list_changed", json!({}));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        notice("notifications/tools/list_changed", json!({}));
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        notice("notifications/prompts/list_changed", json!({}));
    }
}
