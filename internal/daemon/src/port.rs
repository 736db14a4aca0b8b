//! The TCP listener of `[http]`: opened, moved and closed as the config says, and tried again where its address is taken.
//!
//! A daemon without it serves its socket all the same: another program on that port must not keep stdio clients out.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How often an address that cannot be had is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// What `status` says about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The address that was got; none if nothing listens.
    pub(crate) address: Option<SocketAddr>,
    /// Why nothing listens although the config wants it, and what to do.
    pub(crate) error: Option<String>,
}

/// The listener as it is now.
#[derive(Default)]
pub(crate) struct Port {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    wanted: Option<SocketAddr>,
    listening: Option<Arc<Listening>>,
    error: Option<String>,
    /// When it is tried again; where nothing is missing, nothing wakes up for it.
    again: Option<Instant>,
}

struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    /// Cancelled when it is closed: its connections end after the response they are at.
    closed: CancellationToken,
    /// Left to a successor: its connections here go on.
    left: AtomicBool,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) {
            self.closed.cancel();
        }
    }
}

impl Port {
    /// Listens where the config says, or nowhere. What listens there already stays, with the port it got for port 0.
    pub(crate) fn configure(&self, wanted: Option<SocketAddr>) {
        let mut state = self.state();
        if state.wanted != wanted {
            // The old one first: the new address may be the same port.
            *state = State { wanted, ..State::default() };
        }
        drop(state);
        self.see_to();
        self.changed.notify_one();
    }

    /// Tries again to listen, where the config wants it and nothing listens.
    pub(crate) fn see_to(&self) {
        let mut state = self.state();
        let (Some(wanted), None) = (state.wanted, &state.listening) else { return };
        match listen(wanted) {
            Ok(listening) => {
                tracing::info!(address = %listening.address, "listening on TCP");
                (state.listening, state.error, state.again) = (Some(Arc::new(listening)), None, None);
                self.changed.notify_one();
            }
            Err(error) => {
                let text = format!(
                    "cannot listen on {wanted}: {error}; stop what listens there, or change `listen` in [http] \
                     (tried again each minute and on SIGHUP)"
                );
                // Once, not each minute.
                if state.error.as_ref() != Some(&text) {
                    tracing::error!("{text}");
                }
                (state.error, state.again) = (Some(text), Some(Instant::now() + AGAIN));
            }
        }
    }

    /// A listener that the predecessor passed on: kept if the config wants it there.
    ///
    /// # Errors
    /// If it is none, or open to others than this machine; it is closed then.
    pub(crate) fn take_over(&self, passed: OwnedFd, wanted: Option<SocketAddr>) -> io::Result<()> {
        let listener = std::net::TcpListener::from(passed);
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listens = nix::sys::socket::getsockopt(&listener, nix::sys::socket::sockopt::AcceptConn)?;
        if !listens || !address.ip().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no listener on a loopback address"));
        }
        let fits = |wanted: SocketAddr| {
            wanted.ip() == address.ip()
                && matches!(wanted.port(), port if port == 0 || port == address.port())
        };
        if !wanted.is_some_and(fits) {
            return Ok(());
        }
        let listener = TcpListener::from_std(listener)?;
        let (closed, left) = (CancellationToken::new(), AtomicBool::new(false));
        let listening = Listening { listener, address, closed, left };
        let mut state = self.state();
        *state = State { wanted, listening: Some(Arc::new(listening)), ..State::default() };
        tracing::info!(%address, "listening on TCP, as before");
        Ok(())
    }

    /// A copy for a successor.
    pub(crate) fn copy(&self) -> io::Result<Option<OwnedFd>> {
        let state = self.state();
        let listening = state.listening.as_ref();
        listening.map(|listening| listening.listener.as_fd().try_clone_to_owned()).transpose()
    }

    /// The successor has it: this process's copy is closed, and its connections go on.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        if let Some(listening) = state.listening.take() {
            listening.left.store(true, Ordering::Relaxed);
        }
        (state.wanted, state.again) = (None, None);
        self.changed.notify_one();
    }

    /// What there is to say.
    pub(crate) fn standing(&self) -> Standing {
        let state = self.state();
        let address = state.listening.as_ref().map(|listening| listening.address);
        Standing { address, error: state.error.clone() }
    }

    /// The next connection, and what tells that its listener was closed. While it is waited for, a missing listener is
    /// tried again. Loses none when dropped while it waits; only one may wait at a time.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, CancellationToken)> {
        loop {
            // Weak: a listener is closed the moment the config is without it, not when this wakes up.
            let (listening, again) = self.weakly();
            let next = poll_fn(|cx| match listening.as_ref().and_then(Weak::upgrade) {
                None => Poll::Pending,
                Some(listening) => {
                    let closed = &listening.closed;
                    listening.listener.poll_accept(cx).map_ok(|(stream, _)| (stream, closed.clone()))
                }
            });
            tokio::select! {
                accepted = next => return accepted,
                () = self.changed.notified() => {}
                () = until(again) => self.see_to(),
            }
        }
    }

    /// The listener, and when a missing one is tried again.
    fn weakly(&self) -> (Option<Weak<Listening>>, Option<Instant>) {
        let state = self.state();
        (state.listening.as_ref().map(Arc::downgrade), state.again)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn until(again: Option<Instant>) {
    match again {
        Some(again) => sleep_until(again).await,
        None => std::future::pending().await,
    }
}

/// The address is a loopback one: the config lets no other pass. Checked again, because a mistake would open every
/// session to the network.
fn listen(address: SocketAddr) -> io::Result<Listening> {
    if !address.ip().is_loopback() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a loopback address"));
    }
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    // A daemon that comes back after a kill must get the port although connections of the old one linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(1024)?;
    let (closed, left) = (CancellationToken::new(), AtomicBool::new(false));
    Ok(Listening { address: listener.local_addr()?, listener, closed, left })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anywhere() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[tokio::test]
    async fn follows_the_config() {
        let port = Port::default();
        port.configure(Some(anywhere()));
        let first = port.standing().address.unwrap();
        let client = TcpStream::connect(first).await.unwrap();
        let (_served, closed) = port.accept().await.unwrap();
        port.configure(Some(anywhere()));
        assert_eq!(port.standing().address, Some(first), "the same config moves nothing");
        assert!(!closed.is_cancelled());
        port.configure(Some("[::1]:0".parse().unwrap()));
        assert!(closed.is_cancelled());
        assert!(TcpStream::connect(first).await.is_err(), "the old one is closed at once");
        if let Some(second) = port.standing().address {
            let _other = TcpStream::connect(second).await.unwrap();
            port.accept().await.unwrap();
        }
        port.configure(None);
        assert_eq!(port.standing(), Standing::default());
        drop(client);
    }

    #[tokio::test]
    async fn waits_for_an_address_in_use() {
        let other = std::net::TcpListener::bind(anywhere()).unwrap();
        let address = other.local_addr().unwrap();
        let port = Port::default();
        port.configure(Some(address));
        let standing = port.standing();
        assert_eq!(standing.address, None);
        assert!(standing.error.unwrap().contains(&address.to_string()));
        drop(other);
        port.see_to();
        assert_eq!(port.standing(), Standing { address: Some(address), error: None });
        let _client = TcpStream::connect(address).await.unwrap();
        port.accept().await.unwrap();
        assert_eq!(port.state().again, None, "it wakes up for nothing");
    }

    #[tokio::test]
    async fn an_address_that_could_not_be_had_is_tried_again_while_it_waits_for_clients() {
        let other = std::net::TcpListener::bind(anywhere()).unwrap();
        let address = other.local_addr().unwrap();
        let port = Port::default();
        port.configure(Some(address));
        drop(other);
        port.state().again.as_mut().map(|again| *again -= AGAIN).unwrap();
        port.changed.notify_one();
        let client = async {
            while port.standing().address.is_none() {
                tokio::task::yield_now().await;
            }
            TcpStream::connect(address).await.unwrap()
        };
        let (accepted, _client) = tokio::join!(port.accept(), client);
        assert!(accepted.is_ok());
    }

    #[tokio::test]
    async fn a_passed_listener_serves_on_where_the_config_wants_it() {
        let (old, new) = (Port::default(), Port::default());
        old.configure(Some(anywhere()));
        let address = old.standing().address.unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (_served, closed) = old.accept().await.unwrap();
        new.take_over(old.copy().unwrap().unwrap(), Some(anywhere())).unwrap();
        old.leave();
        assert!(!closed.is_cancelled(), "its connections here go on");
        assert_eq!((old.standing(), new.standing().address), (Standing::default(), Some(address)));
        new.configure(Some(anywhere()));
        assert_eq!(new.standing().address, Some(address), "the same config moves nothing");
        let _other = TcpStream::connect(address).await.unwrap();
        new.accept().await.unwrap();
        drop(client);
    }

    #[tokio::test]
    async fn a_passed_listener_that_is_not_wanted_is_closed() {
        let old = Port::default();
        old.configure(Some(anywhere()));
        let address = old.standing().address.unwrap();
        let new = Port::default();
        let other_port = "127.0.0.1:1".parse().unwrap();
        for wanted in [None, Some("[::1]:0".parse().unwrap()), Some(other_port)] {
            new.take_over(old.copy().unwrap().unwrap(), wanted).unwrap();
            assert_eq!(new.standing().address, None, "{wanted:?}");
        }
        old.leave();
        assert!(TcpStream::connect(address).await.is_err(), "nobody has a copy any more");
    }

    #[tokio::test]
    async fn what_is_no_listener_of_this_machine_is_refused() {
        let port = Port::default();
        let listener = std::net::TcpListener::bind(anywhere()).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let wanted = client.local_addr().ok();
        assert!(port.take_over(client.into(), wanted).is_err());
        let open = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let wanted = open.local_addr().ok();
        assert!(port.take_over(open.into(), wanted).is_err());
        assert_eq!(port.standing(), Standing::default());
    }

    #[tokio::test]
    async fn opens_nothing_to_the_network() {
        let port = Port::default();
        port.configure(Some("0.0.0.0:0".parse().unwrap()));
        assert_eq!(port.standing().address, None);
    }
}
