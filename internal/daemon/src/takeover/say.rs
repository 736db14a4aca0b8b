//! Writing frames, each for only so long: a peer that does not read must not hold anyone.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use fd_handover::Channel;
use tokio::time::timeout;

use super::frames::Kind;

/// So long may the other side take to read one frame.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);
/// So much of a manifest goes into one frame.
const CHUNK: usize = 4 * 1024 * 1024;

/// Writes one frame. After a part of one the channel sends no other.
pub(super) async fn say(
    channel: &mut Channel,
    kind: Kind,
    value: &impl serde::Serialize,
    fds: &[BorrowedFd<'_>],
) -> bool {
    let Ok(body) = serde_json::to_vec(value) else { return false };
    written(channel, kind, &body, fds).await
}

/// The manifest's text, in frames that may be as long as that.
pub(super) async fn say_text(channel: &mut Channel, text: &[u8]) -> bool {
    for chunk in text.chunks(CHUNK) {
        if !written(channel, Kind::Manifest, chunk, &[]).await {
            return false;
        }
    }
    true
}

async fn written(channel: &mut Channel, kind: Kind, body: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    matches!(timeout(WRITTEN_WITHIN, channel.send(kind as u8, body, fds)).await, Ok(Ok(())))
}
