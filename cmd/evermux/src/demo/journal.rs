//! What the demo's server saw, request by request, in the order in which it came.

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// GET, POST or DELETE.
    pub(crate) verb: String,
    /// The JSON-RPC method; empty for a response, a GET or a DELETE.
    pub(crate) method: String,
    /// The tool, of `tools/call`.
    pub(crate) tool: Option<String>,
    /// The raw JSON-RPC id, of a request.
    pub(crate) id: Option<String>,
    /// `Mcp-Session-Id`.
    pub(crate) session: Option<String>,
    /// `MCP-Protocol-Version`.
    pub(crate) version: Option<String>,
    /// It was answered 404, because the session is unknown.
    pub(crate) refused: bool,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Journal(pub(crate) Vec<Entry>);

impl Journal {
    pub(crate) fn initializes(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|entry| entry.method == "initialize")
    }

    /// The calls of a tool that were not refused.
    pub(crate) fn calls(&self, tool: &str) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(move |entry| entry.tool.as_deref() == Some(tool) && !entry.refused)
    }
}
