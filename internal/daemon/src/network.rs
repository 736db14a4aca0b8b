//! The HTTP client that all exchanges share: made when first needed, and made anew when what it stands on changed.
//!
//! Making one drops the idle connections of the one before (what runs on them goes on): after a sleep of the machine
//! they are dead, and a request written to one of them would be lost with its outcome unknown.

use std::path::PathBuf;
use std::sync::Arc;

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

/// A client, made at the first need: reading the platform's certificates costs a start what no local upstream wants.
#[derive(Default)]
pub(crate) struct LazySender {
    ca_file: Option<PathBuf>,
    made: OnceCell<Sender>,
    /// Without TLS, for plain upstreams while a certificate file is at fault.
    plain: OnceCell<Sender>,
}

impl LazySender {
    fn new(ca_file: Option<PathBuf>) -> Self {
        Self { ca_file, ..Self::default() }
    }

    /// The client for an endpoint. A file that is at fault is tried again with each call, so that mending it is
    /// enough. `Err` names the file.
    pub(crate) async fn get(&self, url: &Uri) -> Result<Sender, String> {
        let options = TcpOptions { ca_file: self.ca_file.clone(), ..TcpOptions::default() };
        let made = self.made.get_or_try_init(|| make(options)).await;
        match made {
            Err(_) if url.scheme_str() == Some("http") => {
                let options = TcpOptions { tls: false, ..TcpOptions::default() };
                self.plain.get_or_try_init(|| make(options)).await.cloned()
            }
            made => made.cloned(),
        }
    }
}

async fn make(options: TcpOptions) -> Result<Sender, String> {
    match tokio::task::spawn_blocking(move || TcpSender::new(&options)).await {
        Ok(made) => made.map(Redirecting::new).map_err(|error| crate::error::chain(&error)),
        Err(_) => Err("the HTTP client could not be set up".to_owned()),
    }
}
