//! The HTTP client that all exchanges share: made when first needed, and made anew when what it stands on changed.
//!
//! Making one drops the idle connections of the one before (what runs on them goes on): after a sleep of the machine
//! they are dead, and a request written to one of them would be lost with its outcome unknown.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use http::Uri;
use mcp_http::{Redirecting, TcpOptions, TcpSender};
use tokio::sync::OnceCell;

pub(crate) type Sender = Redirecting<TcpSender>;

/// The client in use.
pub(crate) struct Network {
    ca_file: Option<PathBuf>,
    sender: Arc<LazySender>,
}

impl Network {
    pub(crate) fn new(ca_file: Option<PathBuf>) -> Self {
        Self { sender: Arc::new(LazySender::new(ca_file.clone())), ca_file }
    }

    pub(crate) fn sender(&self) -> Arc<LazySender> {
        Arc::clone(&self.sender)
    }

    /// Makes the clients now that these endpoints need. What cannot be made is tried again at its need, and said then.
    pub(crate) async fn warm(&self, urls: impl Iterator<Item = Uri>) {
        for url in urls {
            drop(self.sender.get(&url).await);
        }
    }

    /// A config is in force, new or read again: what the file holds may have changed with it.
    pub(crate) fn configure(&mut self, ca_file: Option<&PathBuf>) {
        if ca_file.is_some() || self.ca_file.is_some() {
            *self = Self::new(ca_file.cloned());
        }
    }

    /// Nothing that is connected now can be relied on.
    pub(crate) fn renew(&mut self) {
        self.sender = Arc::new(LazySender::new(self.ca_file.clone()));
    }
}

/// A client, made at the first need: reading the platform's certificates takes longer than the rest of a start, and no
/// plain upstream needs them.
#[derive(Default)]
pub(crate) struct LazySender {
    ca_file: Option<PathBuf>,
    made: OnceCell<Sender>,
    /// Without TLS, for `http` upstreams.
    plain: OnceCell<Sender>,
    plain_needs_tls: OnceLock<bool>,
}

impl LazySender {
    fn new(ca_file: Option<PathBuf>) -> Self {
        Self { ca_file, ..Self::default() }
    }

    /// The client for an endpoint. A file that is at fault is tried again with each call, so that mending it is
    /// enough. `Err` names the file.
    pub(crate) async fn get(&self, url: &Uri) -> Result<Sender, String> {
        let is_plain = url.scheme_str() == Some("http")
            && !*self.plain_needs_tls.get_or_init(mcp_http::plain_http_needs_tls);
        let cell = if is_plain { &self.plain } else { &self.made };
        match cell.get() {
            Some(made) => Ok(made.clone()),
            None => Box::pin(self.make(!is_plain, cell)).await,
        }
    }

    async fn make(&self, tls: bool, cell: &OnceCell<Sender>) -> Result<Sender, String> {
        let options = TcpOptions { tls, ca_file: self.ca_file.clone(), ..TcpOptions::default() };
        cell.get_or_try_init(|| make(options)).await.cloned()
    }
}

async fn make(options: TcpOptions) -> Result<Sender, String> {
    match tokio::task::spawn_blocking(move || TcpSender::new(&options)).await {
        Ok(made) => made.map(Redirecting::new).map_err(|error| crate::error::chain(&error)),
        Err(_) => Err("the HTTP client could not be set up".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn certificates_are_read_for_https_only() {
        let nowhere = LazySender::new(Some("/nowhere/ca.pem".into()));
        assert!(nowhere.get(&Uri::from_static("http://127.0.0.1:1/mcp")).await.is_ok());
        assert!(nowhere.made.get().is_none());
        let error = nowhere.get(&Uri::from_static("https://127.0.0.1:1/mcp")).await.map(drop);
        assert!(error.unwrap_err().contains("/nowhere/ca.pem"));
    }
}
