//! The control endpoints, on the owner-only socket: what `evermux status`, `stop`, `purge` and the shims use.

use std::time::Instant;

use bytes::Bytes;
use evermux_core::names::UpstreamName;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::build_id::build;
use crate::credentials::Variables;
use crate::downstream::{Face, Reply, ReplyBody, plain};
use crate::inbox::{Ask, Told};
use crate::relay;

/// The largest control request, in bytes.
const LARGEST: usize = 1024 * 1024;

/// The number of this protocol; a shim of another build looks at it before it asks for more.
const PROTOCOL: u32 = 1;

pub(crate) async fn serve(face: &Face, path: &str, request: Request<Incoming>) -> Reply {
    let method = request.method().clone();
    let asks_build = request.uri().query() == Some("build");
    let body = match Limited::new(request.into_body(), LARGEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return refused(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"),
    };
    match (&method, path) {
        (&Method::GET, "hello") => answer(&hello(asks_build).await),
        (&Method::POST, "offer") => offer(face, &body),
        (&Method::GET, "status") => status(face).await,
        (&Method::POST, "stop") => {
            face.inbox.tell(Told::Control(Ask::Stop));
            plain(StatusCode::ACCEPTED, Bytes::new())
        }
        (&Method::POST, "reload") => reload(face).await,
        (&Method::POST, "purge") => purge(face, &body).await,
        (&Method::POST, path) => match path.strip_prefix("env/") {
            Some(name) => take_variables(face, name, &body).await,
            None => refused(StatusCode::NOT_FOUND, "no such control endpoint"),
        },
        _ => refused(StatusCode::NOT_FOUND, "no such control endpoint"),
    }
}

/// A request to a process that was succeeded, on a connection from before: what is asked about is the successor's.
pub(crate) async fn pass_on(face: &Face, request: Request<Incoming>) -> Reply {
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, LARGEST).collect().await else {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    };
    let mut request = Request::new(body.to_bytes());
    (*request.method_mut(), *request.uri_mut()) = (parts.method, parts.uri);
    if let Some(content_type) = parts.headers.get(CONTENT_TYPE) {
        request.headers_mut().insert(CONTENT_TYPE, content_type.clone());
    }
    match relay::pass_on(&face.neighbours, request).await {
        Some(reply) => reply.map(ReplyBody::Passed),
        None => refused(StatusCode::SERVICE_UNAVAILABLE, "this daemon was replaced; ask again"),
    }
}

/// Who this is. The build only for those who ask: it takes a read of the program's file, and each shim says hello.
async fn hello(with_build: bool) -> Value {
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let mut hello = json!({"version": version, "pid": pid, "protocol": PROTOCOL});
    if with_build {
        let build = tokio::task::spawn_blocking(build).await.map_err(std::io::Error::other).flatten();
        if let Err(error) = &build {
            tracing::warn!(%error, "this program's own file cannot be read");
        }
        hello["build"] = json!(build.ok());
    }
    hello
}

/// A newer build offers to take over: whether it may.
fn offer(face: &Face, body: &[u8]) -> Reply {
    #[derive(serde::Deserialize)]
    struct Newer {
        version: String,
    }
    let Ok(Newer { version }) = serde_json::from_slice::<Newer>(body) else {
        return refused(StatusCode::BAD_REQUEST, "the body must be {\"version\": VERSION}");
    };
    let verdict = face.offers.take(Instant::now());
    tracing::info!(version, ?verdict, "a newer build offers to take over");
    answer(&json!({"welcome": verdict.is_ok(), "reason": verdict.err()}))
}

async fn ask<T>(face: &Face, make: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
    let (done, waiting) = oneshot::channel();
    face.inbox.tell(Told::Control(make(done)));
    waiting.await.ok()
}

/// The reactor's report, and after it what lies in quarantine: the disk is read here, because the reactor waits for
/// nobody.
async fn status(face: &Face) -> Reply {
    let Some(mut report) = ask(face, Ask::Status).await else { return ending() };
    crate::status::show_port(&mut report, &face.port.standing());
    let state = face.state.clone();
    let aside = tokio::task::spawn_blocking(move || state.quarantined_sessions()).await;
    match aside {
        Ok(Ok(aside)) => {
            let items = aside.iter().map(|(upstream, trajectory, reason)| {
                crate::status::put_aside(&upstream.0, &trajectory.to_string(), reason)
            });
            if let Some(sessions) = report.get_mut("sessions").and_then(Value::as_array_mut) {
                sessions.extend(items);
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "the quarantine cannot be listed"),
        Err(error) => tracing::warn!(%error, "the quarantine cannot be listed"),
    }
    answer(&report)
}

async fn reload(face: &Face) -> Reply {
    match face.reload().await {
        Ok(()) => answer(&json!({})),
        Err(error) => refused(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn purge(face: &Face, body: &[u8]) -> Reply {
    let Ok(wanted) = serde_json::from_slice::<Value>(body) else {
        return refused(StatusCode::BAD_REQUEST, "the body is not JSON");
    };
    let upstream = match wanted.get("upstream") {
        Some(Value::String(name)) => Some(UpstreamName::from(name.as_str())),
        Some(Value::Null) => None,
        _ => return refused(StatusCode::BAD_REQUEST, "`upstream` must be a name, or null for all"),
    };
    match ask(face, |done| Ask::Purge { upstream, done }).await {
        Some(purged) => answer(&json!({"ended": purged.ended, "owed": purged.owed})),
        None => ending(),
    }
}

async fn take_variables(face: &Face, name: &str, body: &[u8]) -> Reply {
    #[derive(serde::Deserialize)]
    struct Given {
        vars: Variables,
    }
    let Ok(given) = serde_json::from_slice::<Given>(body) else {
        return refused(StatusCode::BAD_REQUEST, "the body must be {\"vars\": {NAME: VALUE}}");
    };
    let identity = face.keeper.give(name, &given.vars).await;
    answer(&json!({"identity": identity.map(|identity| identity.to_string())}))
}

fn answer(value: &Value) -> Reply {
    plain(StatusCode::OK, Bytes::from(value.to_string()))
}

fn refused(status: StatusCode, text: &str) -> Reply {
    plain(status, Bytes::from(json!({"error": text}).to_string()))
}

fn ending() -> Reply {
    refused(StatusCode::SERVICE_UNAVAILABLE, "evermux is ending")
}
