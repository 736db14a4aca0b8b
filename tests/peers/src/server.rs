//! A server on the SDK's streamable HTTP, with the tools of `tests/interop/server.py`.
//!
//! Its streams have event ids and are kept for a minute after their end. What the SDK has types for is built from JSON: those types are
//! no news here, and cannot be built by name outside their crate.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerConfig, ServerNotification,
    SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, Peer, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::net::UnixListener;

const PAGE: usize = 2;
const NOTES: usize = 5;
const CITIES: [&str; 4] = ["Ulm", "Utrecht", "Uppsala", "Vienna"];
const BEAT: Duration = Duration::from_millis(250);

/// Serves at this socket until the process is killed.
pub(crate) async fn serve(socket: &Path) -> anyhow::Result<()> {
    let (shared, number) = (Arc::<Shared>::default(), AtomicU64::default());
    let info: ServerConfig = serde_json::from_value(info())?;
    let make = move || {
        let (shared, info) = (Arc::clone(&shared), info.clone());
        Interop { session: number.fetch_add(1, Ordering::Relaxed), shared, info }
    };
    listen(socket, make).await
}

/// Serves with one such handler a session.
pub(crate) async fn listen<H: ServerHandler>(
    socket: &Path,
    make: impl Fn() -> H + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let service = StreamableHttpService::new(
        move || Ok(make()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    loop {
        let (connection, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(service.handle(request).await) }
            });
            // A client that broke off is not this server's business.
            let served = hyper::server::conn::http1::Builder::new();
            served.serve_connection(TokioIo::new(connection), answer).await.ok();
        });
    }
}

fn info() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "completions": {}, "logging": {}, "prompts": {"listChanged": true},
            "resources": {"listChanged": true, "subscribe": true}, "tools": {"listChanged": true},
        },
        "serverInfo": {"name": "interop-rmcp", "version": "1"},
        "instructions": "The notes are under note://. é \u{2028} 🦀",
    })
}

/// What all sessions have in common.
#[derive(Default)]
struct Shared {
    runs: Mutex<BTreeMap<String, u64>>,
    grown: Mutex<Vec<String>>,
    /// By resource and session.
    subscribers: Mutex<BTreeMap<(String, u64), Peer<RoleServer>>>,
}

/// One session.
struct Interop {
    session: u64,
    shared: Arc<Shared>,
    info: ServerConfig,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value of one of the SDK's types, from JSON.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(internal)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub(crate) fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

pub(crate) fn said(text: impl Into<String>) -> Value {
    json!({"content": [{"type": "text", "text": text.into()}]})
}

fn note(number: usize) -> (String, String) {
    (format!("note://{number}"), format!("Note {number}: {} é \u{2028} 🦀", ".".repeat(number)))
}

fn tool(name: &str, arguments: &[(&str, &str)]) -> Value {
    let properties: Map<_, _> =
        arguments.iter().map(|(name, kind)| ((*name).to_owned(), json!({"type": kind}))).collect();
    let required: Vec<_> = arguments.iter().map(|(name, _)| name).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    json!({"name": name, "description": format!("The tool {name}."), "inputSchema": schema})
}

/// Numbers and texts that a proxy could spell anew.
fn odd() -> Value {
    json!({
        "zebra": 1.0, "alpha": 1e16, "small": 1e-7, "tenth": 0.1, "large": (1_u64 << 53) + 1, "negative": -0.0,
        "text": "é \u{2028} 🦀 \"quoted\" \\ \n \u{1} </script> \u{ffff}",
        "empty": [{}, [], "", null, false],
    })
}

/// What a tool was called with.
pub(crate) struct Call {
    pub(crate) arguments: Value,
    pub(crate) context: RequestContext<RoleServer>,
}

impl Call {
    pub(crate) fn text(&self, argument: &str) -> Result<&str, ErrorData> {
        let text = self.arguments.get(argument).and_then(Value::as_str);
        text.ok_or_else(|| ErrorData::invalid_params(format!("{argument} is missing"), None))
    }

    pub(crate) async fn notify(&self, method: &str, params: impl Serialize) -> Result<(), ErrorData> {
        notify(&self.context.peer, method, params).await
    }

    /// Asks the client, on this call's own stream.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Result<Value, ErrorData> {
        let request = typed(json!({"method": method, "params": params}))?;
        let answer = self.context.peer.send_request(request).await.map_err(internal)?;
        serde_json::to_value(answer).map_err(internal)
    }
}

async fn notify(peer: &Peer<RoleServer>, method: &str, params: impl Serialize) -> Result<(), ErrorData> {
    let notification: ServerNotification = typed(json!({"method": method, "params": params}))?;
    peer.send_notification(notification).await.map_err(internal)
}

impl Interop {
    async fn slow(&self, call: &Call) -> Result<Value, ErrorData> {
        let key = call.text("key")?;
        let steps = call.arguments.get("steps").and_then(Value::as_u64).unwrap_or(1);
        *lock(&self.shared.runs).entry(key.to_owned()).or_default() += 1;
        for step in 1..=steps {
            if let Some(token) = call.context.meta.get_progress_token() {
                let params = json!({"progressToken": token, "progress": step, "total": steps});
                call.notify("notifications/progress", params).await?;
            }
            tokio::time::sleep(BEAT).await;
        }
        Ok(said(format!("slow {key} done")))
    }

    async fn touch(&self, call: &Call) -> Result<Value, ErrorData> {
        let uri = call.text("uri")?;
        let all = lock(&self.shared.subscribers).clone();
        for peer in all.iter().filter(|((of, _), _)| of == uri).map(|(_, peer)| peer) {
            // A session that is gone hears nothing.
            notify(peer, "notifications/resources/updated", json!({"uri": uri})).await.ok();
        }
        Ok(said(format!("touched {uri}")))
    }

    async fn grow(&self, call: &Call) -> Result<Value, ErrorData> {
        let name = call.text("name")?;
        lock(&self.shared.grown).push(name.to_owned());
        call.notify("notifications/tools/list_changed", json!({})).await?;
        Ok(said(format!("grown {name}")))
    }

    async fn run(&self, tool: &str, call: &Call) -> Result<Value, ErrorData> {
        match tool {
            "echo" => Ok(said(format!("Echo: {}", call.text("message")?))),
            "slow" => self.slow(call).await,
            "runs_of" => {
                let runs = lock(&self.shared.runs).get(call.text("key")?).copied();
                Ok(said(runs.unwrap_or_default().to_string()))
            }
            "odd" => {
                let mut result = said("odd");
                result["structuredContent"] = odd();
                Ok(result)
            }
            "ask" => {
                let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
                let params = json!({"message": call.text("question")?, "requestedSchema": schema});
                let answer = call.ask("elicitation/create", params).await?;
                let action = answer["action"].as_str().unwrap_or_default();
                let word = answer["content"]["word"].as_str().unwrap_or("None");
                Ok(said(format!("{action}: {word}")))
            }
            "sample" => {
                let content = json!({"type": "text", "text": call.text("prompt")?});
                let params = json!({"messages": [{"role": "user", "content": content}], "maxTokens": 9});
                let answer = call.ask("sampling/createMessage", params).await?;
                let text = answer["content"]["text"].as_str().unwrap_or_default();
                Ok(said(format!("{}: {text}", answer["model"].as_str().unwrap_or_default())))
            }
            "touch" => self.touch(call).await,
            "grow" => self.grow(call).await,
            "log" => {
                let (level, message) = (call.text("level")?, call.text("message")?);
                let params = json!({"level": level, "logger": "interop", "data": message});
                call.notify("notifications/message", params).await?;
                Ok(said("logged"))
            }
            other => {
                let mut result = said(format!("{other} is no good"));
                result["isError"] = json!(true);
                Ok(result)
            }
        }
    }
}

impl ServerHandler for Interop {
    fn get_info(&self) -> ServerConfig {
        self.info.clone()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools = vec![
            tool("echo", &[("message", "string")]),
            tool("slow", &[("key", "string"), ("steps", "integer")]),
            tool("runs_of", &[("key", "string")]),
            tool("odd", &[]),
            tool("fail", &[]),
            tool("ask", &[("question", "string")]),
            tool("sample", &[("prompt", "string")]),
            tool("touch", &[("uri", "string")]),
            tool("grow", &[("name", "string")]),
            tool("log", &[("level", "string"), ("message", "string")]),
        ];
        tools.extend(lock(&self.shared.grown).iter().map(|name| tool(name, &[])));
        typed(json!({"tools": tools}))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = Call { arguments: request.arguments.unwrap_or_default().into(), context };
        let result: CallToolResult = typed(self.run(&request.name, &call).await?)?;
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let start = cursor.map_or(Ok(0), |cursor| cursor.parse().map_err(internal))?;
        let page = (start + 1..=NOTES).take(PAGE).map(note);
        let page: Vec<_> = page.map(|(uri, _)| json!({"uri": uri, "name": uri})).collect();
        let mut result = json!({"resources": page});
        if start + PAGE < NOTES {
            result["nextCursor"] = json!((start + PAGE).to_string());
        }
        typed(result)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        typed(json!({"resourceTemplates": [{"uriTemplate": "note://{number}", "name": "a note"}]}))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let Some((uri, text)) = (1..=NOTES).map(note).find(|(uri, _)| *uri == request.uri) else {
            return Err(ErrorData::resource_not_found("no such note", Some(json!({"uri": request.uri}))));
        };
        let contents = json!([{"uri": uri, "mimeType": "text/plain", "text": text}]);
        Ok(typed::<ReadResourceResult>(json!({"contents": contents}))?.into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        lock(&self.shared.subscribers).insert((request.uri, self.session), context.peer);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        lock(&self.shared.subscribers).remove(&(request.uri, self.session));
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let city = json!({"name": "city", "description": "Where.", "required": true});
        typed(json!({"prompts": [{"name": "greet", "arguments": [city]}, {"name": "plain"}]}))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if !matches!(request.name.as_str(), "greet" | "plain") {
            return Err(ErrorData::invalid_params("no such prompt", None));
        }
        let arguments = request.arguments.unwrap_or_default();
        let city = arguments.get("city").and_then(Value::as_str).unwrap_or("nobody");
        let content = json!({"type": "text", "text": format!("Greet {city}.")});
        let result =
            json!({"description": "A greeting.", "messages": [{"role": "user", "content": content}]});
        Ok(typed::<GetPromptResult>(result)?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let values: Vec<_> = CITIES.iter().filter(|city| city.starts_with(&request.argument.value)).collect();
        typed(json!({"completion": {"values": values, "total": values.len(), "hasMore": false}}))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}
