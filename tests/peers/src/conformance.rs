//! A server on the SDK with what the official conformance suite asks for: `tests/conformance/server.mjs` in Rust.
//!
//! What it offers is in the same `offers.json`. It never lets go of a stream before its answer: this SDK does not tell a
//! tool which stream it is on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::server::{Call, listen, said, typed};

const BEAT: Duration = Duration::from_millis(50);

/// Serves at this socket until the process is killed.
pub(crate) async fn serve(socket: &Path) -> anyhow::Result<()> {
    let offers: Arc<Value> = Arc::new(serde_json::from_str(include_str!("../../conformance/offers.json"))?);
    let info: ServerConfig = serde_json::from_value(json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "completions": {}, "logging": {}, "prompts": {}, "resources": {"subscribe": true}, "tools": {},
        },
        "serverInfo": {"name": "conformance-rmcp", "version": "1"},
    }))?;
    listen(socket, move || Offering { offers: Arc::clone(&offers), info: info.clone() }).await
}

/// One session.
struct Offering {
    offers: Arc<Value>,
    info: ServerConfig,
}

impl Offering {
    fn list<T: DeserializeOwned>(&self, kind: &str) -> Result<T, ErrorData> {
        typed(json!({kind: self.offers[kind]}))
    }

    async fn run(&self, tool: &str, call: &Call) -> Result<Value, ErrorData> {
        if let Some(result) = self.offers["results"].get(tool) {
            return Ok(result.clone());
        }
        if let Some(schema) = self.offers["questions"].get(tool) {
            let message = call.text("message").unwrap_or("Please answer.");
            let params = json!({"message": message, "requestedSchema": schema});
            let answer = call.ask("elicitation/create", params).await?;
            return Ok(said(format!("action={}, content={}", answer["action"], answer["content"])));
        }
        match tool {
            "test_tool_with_logging" => {
                for data in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                    let params = json!({"level": "info", "logger": "conformance", "data": data});
                    call.notify("notifications/message", params).await?;
                    tokio::time::sleep(BEAT).await;
                }
                Ok(said("logged"))
            }
            "test_tool_with_progress" => {
                for progress in [0, 50, 100] {
                    if let Some(token) = call.context.meta.get_progress_token() {
                        let params = json!({"progressToken": token, "progress": progress, "total": 100});
                        call.notify("notifications/progress", params).await?;
                    }
                    tokio::time::sleep(BEAT).await;
                }
                Ok(said("done"))
            }
            "test_sampling" => {
                let content = json!({"type": "text", "text": call.text("prompt")?});
                let params = json!({"messages": [{"role": "user", "content": content}], "maxTokens": 100});
                let answer = call.ask("sampling/createMessage", params).await?;
                Ok(said(format!("LLM response: {}", answer["content"]["text"])))
            }
            "test_reconnection" => Ok(said("never left")),
            other => Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        }
    }

    fn contents(&self, uri: &str) -> Result<Value, ErrorData> {
        let mut contents = if let Some(known) = self.offers["contents"].get(uri) {
            known.clone()
        } else {
            let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
            let id = id.ok_or_else(|| ErrorData::resource_not_found("no such resource", None))?;
            let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            json!({"mimeType": "application/json", "text": text.to_string()})
        };
        contents["uri"] = json!(uri);
        Ok(contents)
    }

    fn messages(&self, request: &GetPromptRequestParams) -> Result<Value, ErrorData> {
        let messages = self.offers["messages"].get(&request.name);
        let mut text = messages.ok_or_else(|| ErrorData::invalid_params("no such prompt", None))?.to_string();
        for (name, value) in request.arguments.iter().flatten() {
            let value = value.to_string();
            // Inside a JSON string, so without its quotes.
            let value = value.trim_start_matches('"').trim_end_matches('"');
            text = text.replace(&format!("{{{name}}}"), value);
        }
        serde_json::from_str(&text).map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }
}

impl ServerHandler for Offering {
    fn get_info(&self) -> ServerConfig {
        self.info.clone()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.list("tools")
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
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.list("resources")
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.list("resourceTemplates")
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = json!([self.contents(&request.uri)?]);
        Ok(typed::<ReadResourceResult>(json!({"contents": contents}))?.into())
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.list("prompts")
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        Ok(typed::<GetPromptResult>(json!({"messages": self.messages(&request)?}))?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        typed(json!({"completion": {"values": [request.argument.value], "total": 1, "hasMore": false}}))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}
