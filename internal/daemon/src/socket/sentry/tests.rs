//! Each way in which a name may come to lead elsewhere calls, and nothing else does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::errno::Errno;
use tokio::time::timeout;

use super::*;

/// Long, for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A socket in `home/way/run`, `way` being a link, and a sentry at rest.
struct Scene {
    home: tempfile::TempDir,
    socket: Socket,
    sentry: Sentry,
}

impl Scene {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("real/run")).unwrap();
        symlink("real", home.path().join("way")).unwrap();
        let socket = Socket::listen(&home.path().join("way/run/s.sock")).unwrap();
        let sentry = Sentry::of(&socket);
        let mut scene = Self { home, socket, sentry };
        assert!(scene.is_called().await, "there was no first look");
        scene.look().await;
        scene
    }

    fn path(&self) -> &Path {
        &self.socket.path
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    async fn look(&mut self) -> Place {
        self.sentry.arm().await;
        let place = self.socket.place().await;
        self.sentry.rest(place);
        place
    }

    async fn is_called(&mut self) -> bool {
        timeout(PATIENCE, self.sentry.called()).await.is_ok()
    }

    /// Events wait in the kernel from the moment of what they are about, so this needs no time.
    fn is_at_rest(&self) -> bool {
        let silent = self.sentry.watch.as_ref().is_some_and(Watch::is_silent);
        silent && self.sentry.next.is_none() && !self.sentry.alarm
    }
}

impl Watch {
    fn is_silent(&self) -> bool {
        let Some(events) = &self.0 else { return false };
        nix::unistd::read(events.get_ref(), &mut [0; 512]) == Err(Errno::EWOULDBLOCK)
    }
}

/// Does it, requires an alarm, and that what is found then is `place`.
async fn check_called(what: &str, act: impl FnOnce(&Scene), place: Place) {
    let mut scene = Scene::new().await;
    assert!(scene.is_at_rest(), "{what}");
    act(&scene);
    assert!(scene.is_called().await, "{what}");
    assert_eq!(scene.look().await, place, "{what}");
    assert_eq!(scene.is_at_rest(), place == Place::Ours, "{what}");
}

#[tokio::test]
async fn whatever_becomes_of_the_file_calls() {
    check_called("removed", |scene| fs::remove_file(scene.path()).unwrap(), Place::Lost).await;
    check_called("moved", |scene| fs::rename(scene.path(), scene.at("other")).unwrap(), Place::Lost).await;
    let replaced = |scene: &Scene| {
        fs::write(scene.at("file"), "").unwrap();
        fs::rename(scene.at("file"), scene.path()).unwrap();
    };
    check_called("replaced", replaced, Place::Lost).await;
    let back = |scene: &Scene| {
        fs::rename(scene.path(), scene.at("other")).unwrap();
        fs::rename(scene.at("other"), scene.path()).unwrap();
    };
    check_called("moved and put back", back, Place::Ours).await;
}

#[tokio::test]
async fn whatever_becomes_of_the_way_there_calls() {
    let rename =
        |from: &'static str| move |scene: &Scene| fs::rename(scene.at(from), scene.at("gone")).unwrap();
    check_called("directory removed", |scene| fs::remove_dir_all(scene.at("real/run")).unwrap(), Place::Lost)
        .await;
    check_called("directory moved", rename("real/run"), Place::Lost).await;
    check_called("directory above moved", rename("real"), Place::Lost).await;
    check_called("link moved", rename("way"), Place::Lost).await;
    let leads_elsewhere = |scene: &Scene| {
        fs::create_dir_all(scene.at("elsewhere/run")).unwrap();
        symlink("elsewhere", scene.at("new")).unwrap();
        fs::rename(scene.at("new"), scene.at("way")).unwrap();
    };
    check_called("link replaced", leads_elsewhere, Place::Lost).await;
}

#[tokio::test]
async fn what_happens_beside_it_calls_nobody() {
    let scene = Scene::new().await;
    let beside = |name: &str| scene.path().with_file_name(name);
    for _ in 0..1000 {
        fs::write(beside("start.lock"), "").unwrap();
        fs::rename(beside("start.lock"), beside("other")).unwrap();
        fs::remove_file(beside("other")).unwrap();
    }
    drop(Socket::listen(&beside("drain-1.sock")).unwrap());
    let (dialled, accepted) =
        tokio::join!(tokio::net::UnixStream::connect(scene.path()), scene.socket.accept());
    drop((dialled.unwrap(), accepted.unwrap()));
    assert!(scene.is_at_rest());
}

#[tokio::test]
async fn a_socket_that_is_made_anew_is_watched_like_the_first() {
    let mut scene = Scene::new().await;
    scene.sentry.times.pause = Duration::ZERO;
    for _ in 0..3 {
        fs::remove_dir_all(scene.at("real/run")).unwrap();
        assert!(scene.is_called().await);
        assert_eq!(scene.look().await, Place::Lost);
        scene.socket.listen_again().unwrap();
        assert_eq!(scene.look().await, Place::Ours);
        assert!(scene.is_at_rest());
    }
}

#[tokio::test]
async fn an_alarm_that_was_not_waited_for_is_not_lost() {
    let mut scene = Scene::new().await;
    fs::remove_file(scene.path()).unwrap();
    scene.sentry.quiet_until = Instant::now() + 2 * PATIENCE;
    let until = Instant::now() + PATIENCE;
    while !scene.sentry.alarm {
        assert!(Instant::now() < until, "no alarm");
        // As when a connection comes in between.
        tokio::select! {
            biased;
            () = scene.sentry.called() => unreachable!("too early"),
            () = tokio::task::yield_now() => {}
        }
    }
    scene.sentry.quiet_until = Instant::now();
    assert!(scene.is_called().await);
}

#[tokio::test]
async fn without_a_watch_it_calls_again_and_again() {
    let mut scene = Scene::new().await;
    scene.sentry.times = Times { look: Duration::from_millis(1), pause: Duration::ZERO };
    let lost = scene.at("lost");
    let path = std::mem::replace(&mut scene.sentry.path, lost);
    for _ in 0..3 {
        // Where it is, and nothing there can be watched.
        assert_eq!(scene.look().await, Place::Ours);
        assert!(scene.sentry.told && !scene.is_at_rest());
        assert!(scene.is_called().await);
    }
    scene.sentry.path = path;
    assert_eq!(scene.look().await, Place::Ours);
    assert!(scene.is_at_rest(), "the watch can be had again");
}

#[tokio::test]
async fn while_another_has_the_name_it_is_looked_at_again_and_again() {
    let mut scene = Scene::new().await;
    scene.sentry.times.look = Duration::from_millis(1);
    fs::remove_file(scene.path()).unwrap();
    let other = tokio::net::UnixListener::bind(scene.path()).unwrap();
    assert_eq!(scene.look().await, Place::Taken);
    assert!(scene.is_called().await);
    // Its end leaves its file as it was.
    drop(other);
    assert_eq!(scene.look().await, Place::Lost);
    assert!(scene.is_called().await);
}

/// Whether this process has a watch of this socket's file.
fn is_watched(socket: &Socket) -> bool {
    let watch = format!(" ino:{:x} ", socket.file.1);
    let open = fs::read_dir("/proc/self/fdinfo").unwrap();
    // Some are closed meanwhile.
    open.filter_map(|fd| fs::read_to_string(fd.unwrap().path()).ok()).any(|info| info.contains(&watch))
}

/// The one thread that may block is at something else here.
#[test]
fn a_watch_is_not_closed_on_the_thread_that_clients_wait_for() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let Scene { home: _home, socket, sentry } = Scene::new().await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
        drop(sentry);
        assert!(is_watched(&socket), "it was closed at once");
        drop(release);
        assert!(busy.await.unwrap());
        tokio::task::spawn_blocking(|| {}).await.unwrap();
        assert!(!is_watched(&socket), "it was not closed");
    });
}

#[test]
fn the_watch_before_is_closed_before_there_is_another() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::new().await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
        tokio::select! {
            biased;
            () = scene.sentry.arm() => unreachable!("it was not waited for"),
            () = tokio::task::yield_now() => {}
        }
        assert!(scene.sentry.watch.is_none());
        drop(release);
        assert!(busy.await.unwrap());
        scene.look().await;
        assert!(scene.is_at_rest());
    });
}
