//! Redirects that stay at their origin, followed beneath everything that counts attempts or reads refusals.
//!
//! Python servers send `/mcp` to `/mcp/` by 307, so somebody has to follow; HTTP libraries would turn a POST into a
//! GET (301, 302) or carry the credentials to another host, so it cannot be them. What is not followed is an error
//! of its own kind that names the target, so that a user can correct the URL. RFC 9110 section 15.4.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use url::Url;

use crate::body::RawBody;
use crate::client::Sender;
use crate::error::{SendError, SendErrorKind, Written};

/// Redirects in a row that are followed.
const MOST_HOPS: usize = 5;
/// A redirect's own body is read up to this, so that its connection can be used for the next hop.
const DRAINED: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// Endpoints whose place is remembered; beyond that all are forgotten, which costs a round trip each.
const MOST_LEARNED: usize = 256;
/// Longer parts of a target's path are not shown: some services keep a token there.
const LONGEST_SHOWN_SEGMENT: usize = 20;
const LONGEST_SHOWN: usize = 200;

/// A redirect that was not followed.
///
/// The request was not processed, except perhaps with 303, which means "done, and what came of it is there";
/// [`SendError::written`] says which. Holds no query and no user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it redirects (HTTP {}){}, {why}", status.as_u16(), Target(target.as_deref()))]
pub struct RedirectError {
    /// The status.
    pub status: StatusCode,
    /// Where to: origin and path; long parts of the path are left out. `None` if the response names no place.
    pub target: Option<String>,
    /// Why it was not followed.
    pub why: NotFollowed,
}

/// Why a redirect was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFollowed {
    /// To another scheme, host or port: neither session nor credentials go there.
    OtherOrigin,
    /// 301, 302 and 303 make a GET of anything else.
    ChangesMethod,
    /// Back to where it came from.
    Loop,
    /// More than five in a row.
    TooMany,
    /// The `Location` is missing or is no HTTP URL.
    NoTarget,
}

impl fmt::Display for NotFollowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherOrigin => "which is another origin and not followed; if it is right, make it the url",
            Self::ChangesMethod => "which would lose the message and is not followed; make it the url",
            Self::Loop => "in a circle",
            Self::TooMany => "after five redirects before",
            Self::NoTarget => "and does not say where to",
        })
    }
}

struct Target<'a>(Option<&'a str>);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |target| write!(f, " to {target}"))
    }
}

/// A sender that follows redirects within an origin: 307 and 308 with the same method, body and headers, 301 to 303
/// for GET only; five at most. Clones share what they learned: a redirect that only adds or takes a slash at the end
/// is remembered while it works, another 307 or 308 is asked for each time, since it may concern one call.
#[derive(Clone)]
pub struct Redirecting<S> {
    sender: S,
    learned: Arc<Mutex<HashMap<Uri, Uri>>>,
}

impl<S> Redirecting<S> {
    /// Follows what `sender` reports.
    pub fn new(sender: S) -> Self {
        Self { sender, learned: Arc::default() }
    }

    fn learned(&self) -> MutexGuard<'_, HashMap<Uri, Uri>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, endpoint: Uri, place: Uri) {
        let mut learned = self.learned();
        if learned.len() >= MOST_LEARNED {
            learned.clear();
        }
        learned.insert(endpoint, place);
    }
}

impl<S> fmt::Debug for Redirecting<S> {
    /// Without what it learned: URLs may hold tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redirecting").finish_non_exhaustive()
    }
}

impl<S: Sender> Sender for Redirecting<S> {
    async fn send(&self, request: &Request<Bytes>) -> Result<Response<RawBody>, SendError> {
        let learned = {
            let learned = self.learned();
            // Mostly there is nothing, and a URL takes long to hash.
            if learned.is_empty() { None } else { learned.get(request.uri()).cloned() }
        };
        // The rare ways are boxed: a request takes room for the largest of its ways.
        if let Some(place) = learned
            && let Some(response) = Box::pin(self.send_to(place, request)).await?
        {
            return Ok(response);
        }
        let response = self.sender.send(request).await?;
        if !is_redirect(response.status()) {
            return Ok(response);
        }
        Box::pin(self.follow(request, response)).await
    }
}

impl<S: Sender> Redirecting<S> {
    /// To where it led before. `None`: it does not any more, and nothing was processed there.
    async fn send_to(
        &self,
        place: Uri,
        request: &Request<Bytes>,
    ) -> Result<Option<Response<RawBody>>, SendError> {
        let response = self.sender.send(&at(request, place.clone())).await?;
        // Perhaps the place is not what it was.
        let moved = is_redirect(response.status())
            || matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE);
        if !moved {
            return Ok(Some(response));
        }
        self.learned().remove(request.uri());
        if may_have_run(response.status(), request.method()) {
            let error = next(request, &[place], response.status(), response.headers());
            return Err(refused(error.err(), response.status(), request.method()));
        }
        drain(response.into_body()).await;
        Ok(None)
    }

    /// To where this response leads.
    async fn follow(
        &self,
        request: &Request<Bytes>,
        mut response: Response<RawBody>,
    ) -> Result<Response<RawBody>, SendError> {
        let (mut path, mut keeps_method) = (vec![request.uri().clone()], true);
        loop {
            let status = response.status();
            keeps_method &= matches!(status.as_u16(), 307 | 308);
            let place = next(request, &path, status, response.headers())
                .map_err(|error| refused(Some(error), status, request.method()))?;
            path.push(place.clone());
            drain(response.into_body()).await;
            response = self.sender.send(&at(request, place.clone())).await?;
            if is_redirect(response.status()) {
                continue;
            }
            let only_a_slash = path.len() == 2 && is_slash(request.uri(), &place);
            if keeps_method && only_a_slash && response.status().is_success() {
                self.learn(request.uri().clone(), place);
            }
            return Ok(response);
        }
    }
}

fn refused(error: Option<RedirectError>, status: StatusCode, method: &Method) -> SendError {
    let written = if may_have_run(status, method) { Written::Unknown } else { Written::Never };
    let error = error.unwrap_or(RedirectError { status, target: None, why: NotFollowed::ChangesMethod });
    SendError::new(SendErrorKind::Redirect, written, error)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// RFC 9110 section 15.4.4: 303 is the answer to a request that was carried out.
fn may_have_run(status: StatusCode, method: &Method) -> bool {
    status == StatusCode::SEE_OTHER && method != Method::GET
}

/// The same request at another place. A body is `Bytes`: the copy shares it.
fn at(request: &Request<Bytes>, place: Uri) -> Request<Bytes> {
    let mut request = request.clone();
    *request.uri_mut() = place;
    request
}

/// Where a redirect leads, if it may be followed. `path`: where the request was so far; never empty.
fn next(
    request: &Request<Bytes>,
    path: &[Uri],
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<Uri, RedirectError> {
    let no_target = || RedirectError { status, target: None, why: NotFollowed::NoTarget };
    let from = path.last().unwrap_or(request.uri());
    let from = Url::parse(&from.to_string()).map_err(|_| no_target())?;
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(no_target)?;
    let mut target = from.join(location).map_err(|_| no_target())?;
    if !matches!(target.scheme(), "http" | "https") {
        return Err(no_target());
    }
    target.set_fragment(None);
    // Both fail only for URLs that cannot have a host. A user in it would become a header.
    target.set_username("").and_then(|()| target.set_password(None)).map_err(|()| no_target())?;
    let refuse = |why| RedirectError { status, target: Some(shown(&target)), why };
    if target.origin() != from.origin() {
        return Err(refuse(NotFollowed::OtherOrigin));
    }
    if request.method() != Method::GET && !matches!(status.as_u16(), 307 | 308) {
        return Err(refuse(NotFollowed::ChangesMethod));
    }
    let place = Uri::try_from(target.as_str()).map_err(|_| no_target())?;
    if path.contains(&place) {
        return Err(refuse(NotFollowed::Loop));
    }
    if path.len() > MOST_HOPS {
        return Err(refuse(NotFollowed::TooMany));
    }
    Ok(place)
}

/// Origin and path, for people.
fn shown(target: &Url) -> String {
    let mut text = target.origin().ascii_serialization();
    for segment in target.path().split('/').skip(1) {
        text.push('/');
        text.push_str(if segment.len() > LONGEST_SHOWN_SEGMENT { "…" } else { segment });
    }
    text.chars().take(LONGEST_SHOWN).collect()
}

/// Whether two places differ in nothing but one slash at the end of the path.
fn is_slash(one: &Uri, other: &Uri) -> bool {
    let (a, b) = (one.path(), other.path());
    one.query() == other.query() && (a.strip_suffix('/') == Some(b) || b.strip_suffix('/') == Some(a))
}

async fn drain(mut body: RawBody) {
    let read = async {
        let mut length = 0;
        while let Some(Ok(frame)) = body.frame().await {
            length += frame.data_ref().map_or(0, Bytes::len);
            if length > DRAINED {
                break;
            }
        }
    };
    drop(tokio::time::timeout(DRAIN_TIME, read).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(method: Method, path: &[&str], status: u16, location: &str) -> Result<String, RedirectError> {
        let path: Vec<Uri> = path.iter().map(|place| place.parse().unwrap()).collect();
        let request = Request::builder().method(method).uri(path[0].clone()).body(Bytes::new()).unwrap();
        let headers = HeaderMap::from_iter([(LOCATION, location.parse().unwrap())]);
        next(&request, &path, StatusCode::from_u16(status).unwrap(), &headers).map(|uri| uri.to_string())
    }

    fn why(outcome: Result<String, RedirectError>) -> NotFollowed {
        outcome.unwrap_err().why
    }

    #[test]
    fn targets_are_resolved_like_references() {
        for (location, target) in [
            ("/mcp/?q=1", "http://h:8080/mcp/?q=1"),
            ("mcp/", "http://h:8080/mcp/"),
            ("//h:8080/x", "http://h:8080/x"),
            ("http://H:8080/x#f", "http://h:8080/x"),
            ("http://u:p@h:8080/x", "http://h:8080/x"),
            ("?a", "http://h:8080/mcp?a"),
        ] {
            assert_eq!(led(Method::POST, &["http://h:8080/mcp"], 307, location).unwrap(), target);
        }
        assert_eq!(led(Method::POST, &["https://h/a"], 308, "https://h:443/b").unwrap(), "https://h/b");
    }

    #[test]
    fn another_origin_is_refused_whatever_differs() {
        for location in [
            "https://h/mcp",
            "http://h:8080/mcp",
            "http://i/mcp",
            "http://h.evil/mcp",
            "//evil/mcp",
            "http://h@evil/mcp",
            "\\\\evil/mcp",
        ] {
            for method in [Method::POST, Method::GET, Method::DELETE] {
                assert_eq!(why(led(method, &["http://h/mcp"], 307, location)), NotFollowed::OtherOrigin);
            }
        }
        assert_eq!(
            why(led(Method::POST, &["https://h/a"], 308, "http://h:443/a")),
            NotFollowed::OtherOrigin,
            "a downgrade on the same port"
        );
        for location in ["ftp://h/", "data:,x", "http://", "javascript:0"] {
            assert_eq!(why(led(Method::POST, &["http://h/mcp"], 307, location)), NotFollowed::NoTarget);
        }
    }

    #[test]
    fn errors_name_the_place_without_query_user_and_long_parts() {
        let token = "t0ken".repeat(5);
        let location = format!("https://u:p@h/{token}/mcp?key={token}");
        let error = led(Method::POST, &["http://h/mcp"], 301, &location).unwrap_err();
        assert_eq!(error.target.as_deref(), Some("https://h/…/mcp"));
        let text = format!("{error} {error:?}");
        assert!(text.contains("301") && !text.contains("t0ken") && !text.contains("u:p"), "{text}");
    }

    #[test]
    fn only_a_slash_is_worth_remembering() {
        let slash = |a: &str, b: &str| is_slash(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(slash("http://h/mcp", "http://h/mcp/"));
        assert!(slash("http://h/mcp/?q", "http://h/mcp?q"));
        assert!(!slash("http://h/mcp?q", "http://h/mcp/"));
        assert!(!slash("http://h/mcp", "http://h/mcp/docs/D1"));
        assert!(!slash("http://h/mcp", "http://h/mcp"));
    }
}
