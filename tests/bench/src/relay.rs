//! The limit of one hop: everything that a proxy cannot do without, and nothing else.
//!
//! Takes a request, sends it on over a pooled connection, streams the answer back. No parsing, no sessions, no
//! checks. What evermux takes longer than this is the price of what it does.

use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode};

use crate::pool::{Pool, PooledBody};
use crate::server::{Listener, serve_http};

type RelayedBody = Either<PooledBody<Incoming>, Full<Bytes>>;

/// Relays everything that comes to `listener` to the endpoint `upstream`.
pub(crate) async fn serve(listener: Listener, upstream: &str) -> Result<()> {
    let pool = Pool::new(upstream)?;
    listener.announce(crate::upstream::MCP_PATH)?;
    serve_http(listener, &Arc::default(), move |request| {
        let pool = Arc::clone(&pool);
        async move { relay(&pool, request).await.map(|body| body.map_err(std::io::Error::other)) }
    })
    .await
}

async fn relay(pool: &Arc<Pool<Incoming>>, mut request: Request<Incoming>) -> Response<RelayedBody> {
    remove_hop_by_hop(request.headers_mut());
    match pool.send(request).await {
        Ok(mut response) => {
            remove_hop_by_hop(response.headers_mut());
            response.map(Either::Left)
        }
        Err(error) => {
            let mut response = Response::new(Either::Right(Full::from(format!("{error:#}"))));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
}
