//! Reads a recorded trace. `record.py` says how it is made.
//!
//! ```text
//! 2774 > a {"jsonrpc":...}                 client a posts; also `GET` and `DELETE`
//! 2912 < initialize#1 head 200 event-stream SESSION
//! 2913 < initialize#1 chunk                of the body; its lines follow, each ends with CRLF
//! |data: {"jsonrpc":"2.0","id":$id,...}
//! |
//! 2916 < initialize#1 end
//! ```

use anyhow::{Context as _, Result, bail};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since the recording began.
    pub at_ms: u64,
    /// A client's letter, or an exchange's name.
    pub who: String,
    /// What it did.
    pub what: Happening,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A client sent this line.
    Posted(String),
    /// A client opened its GET stream.
    Listening,
    /// A client ended its link.
    Left,
    /// A response's head, with the session it named.
    Head(Option<String>),
    /// A piece of its body.
    Chunk(String),
    /// Its end, as HTTP says it must be.
    End,
}

/// Reads a whole trace.
///
/// # Errors
/// If a line cannot be read, with its number.
pub fn read(text: &str) -> Result<Vec<Moment>> {
    let mut moments: Vec<Moment> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let piece = line.strip_prefix('|').zip(moments.last_mut());
        if let Some((piece, Moment { what: Happening::Chunk(chunk), .. })) = piece {
            chunk.push_str(piece);
            chunk.push_str("\r\n");
        } else {
            moments.push(moment(line).with_context(|| format!("line {}", number + 1))?);
        }
    }
    Ok(moments)
}

fn moment(line: &str) -> Result<Moment> {
    let mut words = line.splitn(4, ' ');
    let (at, side, who) = (words.next(), words.next(), words.next());
    let (Some(at), Some(side), Some(who)) = (at, side, who) else { bail!("too short") };
    let rest = words.next().unwrap_or_default();
    let what = match (side, rest.split(' ').next()) {
        (">", Some("GET")) => Happening::Listening,
        (">", Some("DELETE")) => Happening::Left,
        (">", _) => Happening::Posted(rest.to_owned()),
        ("<", Some("head")) => {
            let session = rest.rsplit(' ').next().filter(|session| *session != "-");
            Happening::Head(session.map(str::to_owned))
        }
        ("<", Some("chunk")) => Happening::Chunk(String::new()),
        ("<", Some("end")) => Happening::End,
        _ => bail!("neither a client's nor a server's"),
    };
    Ok(Moment { at_ms: at.parse().context("no time")?, who: who.to_owned(), what })
}
