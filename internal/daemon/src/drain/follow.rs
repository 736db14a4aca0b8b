//! The active process's side of a drain socket: it listens to what a process that drains has to tell until that one's
//! end was taken in, and asks it for streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use evermux_core::handover::Peer;
use evermux_core::names::{Generation, Trajectory};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use mcp_http::{Sender as _, UnixSender};

use super::line::{Begin, Line, Numbered};
use crate::inbox::{Inbox, Told};
use crate::neighbours::Neighbours;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A released stream lists its listeners; so many have room.
const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// Turns its lines into facts until it is gone.
pub(crate) async fn follow(neighbours: Arc<Neighbours>, inbox: Inbox, generation: Generation) {
    let listening = async {
        let (mut last, mut pause) = (0, FIRST_PAUSE);
        loop {
            if listen(&neighbours, &inbox, generation, &mut last).await.is_some() {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    tokio::select! {
        () = listening => {}
        () = neighbours.departed(generation) => {}
    }
}

/// Listens on one connection. `last`: the number of the last line read.
async fn listen(
    neighbours: &Neighbours,
    inbox: &Inbox,
    generation: Generation,
    last: &mut u64,
) -> Option<()> {
    let path = match *last {
        0 => "/control/drain".to_owned(),
        last => format!("/control/drain?after={last}"),
    };
    let response = send(neighbours, generation, Method::GET, &path).await?;
    if response.status() != StatusCode::OK {
        tracing::warn!(generation = generation.0, status = %response.status(), "a process that drains tells nothing");
        return None;
    }
    let (mut body, mut rest) = (response.into_body(), BytesMut::new());
    while let Some(Ok(frame)) = body.frame().await {
        rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(end) = memchr::memchr(b'\n', &rest) {
            let line = rest.split_to(end + 1);
            take(neighbours, inbox, generation, last, &line);
        }
        if rest.len() > LONGEST_LINE {
            tracing::error!(generation = generation.0, "a line of a process that drains is too long");
            return None;
        }
    }
    Some(())
}

fn take(neighbours: &Neighbours, inbox: &Inbox, generation: Generation, last: &mut u64, line: &[u8]) {
    let Ok(Numbered { number, line }) = serde_json::from_slice(line) else {
        return tracing::warn!(generation = generation.0, "a line of a process that drains makes no sense");
    };
    *last = number.max(*last);
    if let Line::Begin(Begin { pid: Some(pid) }) = line {
        return neighbours.note_pid(generation, pid);
    }
    if let Some(fact) = line.fact(generation) {
        inbox.tell(Told::Fact(fact));
    }
}

/// Asks for a stream until it was asked, or the process is gone, which ends its streams too.
pub(crate) async fn release(neighbours: Arc<Neighbours>, generation: Generation, trajectory: Trajectory) {
    let path = format!("/control/release/{trajectory}");
    let asking = async {
        let mut pause = FIRST_PAUSE;
        // Asked twice it answers twice; a connection that broke does not say which.
        while send(&neighbours, generation, Method::POST, &path).await.is_none() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    tokio::select! {
        () = asking => {}
        () = neighbours.departed(generation) => {}
    }
}

async fn send(
    neighbours: &Neighbours,
    generation: Generation,
    method: Method,
    path: &str,
) -> Option<http::Response<mcp_http::RawBody>> {
    let request = Request::builder().method(method).uri(path).body(Bytes::new()).ok()?;
    UnixSender::new(neighbours.path(Peer::Draining(generation))).send(&request).await.ok()
}
