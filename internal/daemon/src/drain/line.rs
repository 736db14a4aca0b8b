//! The lines of `GET /control/drain`: JSON, one a line, as another build of this program may read or write them.
//! Members and kinds that a reader does not know are passed over.

use bytes::Bytes;
use evermux_core::handles::{Handle, HandleNews};
use evermux_core::handover::{Forwarded, HandedTrail, ReleasedStream};
use evermux_core::input::Input;
use evermux_core::names::{Generation, Handshake, LinkNonce, Trajectory, WireId};
use evermux_core::seal::Place;
use serde::{Deserialize, Serialize};

/// A line with its number: whoever lost the connection says the last one it read.
#[derive(Serialize, Deserialize)]
pub(crate) struct Numbered {
    /// 0 for the first line of a connection, which says nothing.
    #[serde(rename = "n")]
    pub(crate) number: u64,
    #[serde(flatten)]
    pub(crate) line: Line,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Line {
    /// The connection stands.
    Begin(Begin),
    CallOver(CallOver),
    Released(Box<Released>),
    News(Box<News>),
    Handles(Box<Handles>),
    /// Of a newer build.
    #[serde(other)]
    Unknown,
}

/// Who speaks; a build from before this was told says nothing of itself.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct CallOver {
    trajectory: String,
    handshake: u32,
    wire: u64,
    /// A build from before this was told does not say it of any call: each may still run at its server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    answered: bool,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Released {
    trajectory: String,
    handshake: u32,
    cursor: Option<String>,
    heard: Vec<Heard>,
    missed: Vec<Missed>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Heard {
    link: String,
    generation: u64,
    trail: u64,
    number: u64,
    of_call: bool,
    /// Events up to this one are not told here; without it, none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    told: Vec<(u64, String)>,
}

/// A message is a text here: its bytes are to stay as its server wrote them.
#[derive(Clone, Serialize, Deserialize)]
struct Missed {
    link: String,
    message: String,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct News {
    trajectory: String,
    handshake: u32,
    message: String,
    told: Option<String>,
}

/// What an answer has changed about handles. Values are keyed hashes.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Handles {
    trajectory: String,
    handshake: u32,
    born: Vec<Born>,
    settled: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Born {
    value: String,
    handshake: u32,
    expires_ms: u64,
    tool: Option<String>,
    known_to: Vec<String>,
}

impl Line {
    pub(crate) fn call_over(
        trajectory: Trajectory,
        handshake: Handshake,
        wire: WireId,
        answered: bool,
    ) -> Self {
        let trajectory = trajectory.to_string();
        Self::CallOver(CallOver { trajectory, handshake: handshake.0, wire: wire.0, answered })
    }

    pub(crate) fn released(stream: &ReleasedStream) -> Self {
        let missed =
            |(link, message): &(LinkNonce, Bytes)| Missed { link: link.to_string(), message: text(message) };
        Self::Released(Box::new(Released {
            trajectory: stream.trajectory.to_string(),
            handshake: stream.handshake.0,
            cursor: stream.cursor.clone(),
            heard: stream.heard.iter().map(Heard::of).collect(),
            missed: stream.missed.iter().map(missed).collect(),
        }))
    }

    pub(crate) fn forwarded(news: &Forwarded) -> Self {
        Self::News(Box::new(News {
            trajectory: news.trajectory.to_string(),
            handshake: news.handshake.0,
            message: text(&news.message),
            told: news.told.map(|link| link.to_string()),
        }))
    }

    pub(crate) fn handles(news: &HandleNews) -> Self {
        let born = |handle: &Handle| Born {
            value: handle.value.to_string(),
            handshake: handle.handshake.0,
            expires_ms: handle.expires_ms,
            tool: handle.tool.map(|tool| tool.to_string()),
            known_to: handle.known_to.iter().map(ToString::to_string).collect(),
        };
        Self::Handles(Box::new(Handles {
            trajectory: news.trajectory.to_string(),
            handshake: news.handshake.0,
            born: news.born.iter().map(born).collect(),
            settled: news.settled.iter().map(ToString::to_string).collect(),
        }))
    }

    /// The fact it tells, if it tells one; `generation`: whose line it is.
    pub(crate) fn fact(self, generation: Generation) -> Option<Input> {
        match self {
            Self::Begin(_) | Self::Unknown => None,
            Self::CallOver(call) => Some(Input::EndedElsewhere {
                generation,
                trajectory: call.trajectory.parse().ok()?,
                handshake: Handshake(call.handshake),
                wire: WireId(call.wire),
                answered: call.answered,
            }),
            Self::Released(released) => {
                let stream = Box::new(released.stream()?);
                Some(Input::Released { generation, stream })
            }
            Self::News(news) => Some(Input::Forwarded(Box::new(news.forwarded()?))),
            Self::Handles(handles) => Some(Input::HandlesChanged(Box::new(handles.news()?))),
        }
    }
}

/// JSON is UTF-8, or it would not have been taken.
fn text(message: &Bytes) -> String {
    String::from_utf8_lossy(message).into_owned()
}

impl Heard {
    fn of((link, trail): &(LinkNonce, HandedTrail)) -> Self {
        let HandedTrail { place, lost, told, .. } = trail;
        Self {
            link: link.to_string(),
            generation: place.generation.0,
            trail: place.trail,
            number: place.number,
            of_call: place.of_call,
            lost: Some(*lost).filter(|lost| *lost != place.number),
            told: told.iter().map(|(number, data)| (*number, text(data))).collect(),
        }
    }

    /// Where it ended before is in the manifest.
    fn trail(self) -> Option<(LinkNonce, HandedTrail)> {
        let Self { link, generation, trail, number, of_call, lost, told } = self;
        let place = Place { generation: Generation(generation), trail, number, of_call };
        let told = told.into_iter().map(|(number, data)| (number, Bytes::from(data))).collect();
        let end = HandedTrail::ending_at(place);
        Some((link.parse().ok()?, HandedTrail { lost: lost.unwrap_or(number), told, ..end }))
    }
}

impl News {
    fn forwarded(self) -> Option<Forwarded> {
        let told = match self.told {
            Some(link) => Some(link.parse().ok()?),
            None => None,
        };
        Some(Forwarded {
            trajectory: self.trajectory.parse().ok()?,
            handshake: Handshake(self.handshake),
            message: Bytes::from(self.message),
            told,
        })
    }
}

impl Handles {
    fn news(self) -> Option<HandleNews> {
        let born = self.born.into_iter().map(|born| {
            Some(Handle {
                value: born.value.parse().ok()?,
                handshake: Handshake(born.handshake),
                expires_ms: born.expires_ms,
                tool: born.tool.map(|tool| tool.parse()).transpose().ok()?,
                known_to: born.known_to.iter().map(|link| link.parse().ok()).collect::<Option<_>>()?,
                looked: None,
            })
        });
        Some(HandleNews {
            trajectory: self.trajectory.parse().ok()?,
            handshake: Handshake(self.handshake),
            born: born.collect::<Option<_>>()?,
            settled: self.settled.iter().map(|value| value.parse().ok()).collect::<Option<_>>()?,
        })
    }
}

impl Released {
    fn stream(self) -> Option<ReleasedStream> {
        let missed = self.missed.into_iter().map(|one| Some((one.link.parse().ok()?, one.message.into())));
        Some(ReleasedStream {
            trajectory: self.trajectory.parse().ok()?,
            handshake: Handshake(self.handshake),
            cursor: self.cursor,
            heard: self.heard.into_iter().map(Heard::trail).collect::<Option<_>>()?,
            missed: missed.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use evermux_core::names::Digest;

    use super::*;

    const GOLDEN: &str = include_str!("golden/lines.jsonl");
    const NEWER: &str = include_str!("golden/newer.jsonl");

    const NEWS: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

    fn handles() -> HandleNews {
        let handle = Handle {
            value: Digest(0x1a),
            handshake: Handshake(2),
            expires_ms: 1_790_000_000_000,
            tool: Some(Digest(0x2b)),
            known_to: vec![LinkNonce(0xcd)],
            looked: None,
        };
        let (trajectory, handshake) = (Trajectory(0xab), Handshake(2));
        HandleNews { trajectory, handshake, born: vec![handle], settled: vec![Digest(0x3c)] }
    }

    fn lines() -> Vec<Line> {
        let place = Place { generation: Generation(3), trail: 6, number: 7, of_call: false };
        let stream = ReleasedStream {
            trajectory: Trajectory(0xab),
            handshake: Handshake(2),
            cursor: Some("stream-1_17".to_owned()),
            heard: vec![(LinkNonce(0xcd), HandedTrail::ending_at(place))],
            missed: vec![(LinkNonce(0xef), Bytes::from_static(NEWS))],
        };
        let rest = HandedTrail {
            lost: 5,
            told: vec![(6, Bytes::from_static(NEWS)), (7, Bytes::from_static(b"{}"))],
            ..HandedTrail::ending_at(place)
        };
        let telling = ReleasedStream { heard: vec![(LinkNonce(0xcd), rest)], ..stream.clone() };
        let silent = ReleasedStream { cursor: None, heard: Vec::new(), missed: Vec::new(), ..stream.clone() };
        let (trajectory, handshake, message) = (Trajectory(0xab), Handshake(2), Bytes::from_static(NEWS));
        let news = Forwarded { trajectory, handshake, message, told: Some(LinkNonce(0xcd)) };
        let to_all = Forwarded { told: None, ..news.clone() };
        vec![
            Line::Begin(Begin { pid: Some(4711) }),
            Line::call_over(Trajectory(0xab), Handshake(2), WireId(9_007_199_254_740_991), false),
            Line::released(&stream),
            Line::released(&silent),
            Line::forwarded(&news),
            Line::forwarded(&to_all),
            Line::released(&telling),
            Line::handles(&handles()),
            Line::call_over(Trajectory(0xab), Handshake(2), WireId(5), true),
        ]
    }

    #[test]
    fn lines_are_written_as_the_golden_file_has_them() {
        let written: Vec<String> = (0..)
            .zip(lines())
            .map(|(number, line)| serde_json::to_string(&Numbered { number, line }).unwrap())
            .collect();
        assert_eq!(written, GOLDEN.lines().collect::<Vec<_>>());
    }

    #[test]
    fn the_lines_of_the_golden_file_are_read_as_what_was_written() {
        for (text, line) in GOLDEN.lines().zip(lines()) {
            let read: Numbered = serde_json::from_str(text).unwrap();
            let fact = |line: Line| format!("{:?}", line.fact(Generation(3)));
            assert_eq!(fact(read.line), fact(line), "{text}");
        }
    }

    #[test]
    fn what_a_newer_build_adds_is_passed_over() {
        let facts = |text: &str| -> Vec<(u64, bool)> {
            let read = |line| serde_json::from_str::<Numbered>(line).unwrap();
            text.lines().map(read).map(|one| (one.number, one.line.fact(Generation(1)).is_some())).collect()
        };
        assert_eq!(facts(NEWER), [(0, false), (1, true), (2, false), (3, true)]);
    }

    /// An older build says nothing of it.
    #[test]
    fn a_call_was_answered_only_if_its_line_says_so() {
        let answered =
            |text: &str| match serde_json::from_str::<Numbered>(text).unwrap().line.fact(Generation(1)) {
                Some(Input::EndedElsewhere { answered, .. }) => Some(answered),
                _ => None,
            };
        let told: Vec<bool> = GOLDEN.lines().filter_map(answered).collect();
        assert_eq!(told, [false, true]);
    }

    #[test]
    fn a_name_that_is_none_is_no_fact() {
        let text = r#"{"n":1,"kind":"call_over","trajectory":"AB","handshake":1,"wire":1}"#;
        let read: Numbered = serde_json::from_str(text).unwrap();
        assert!(read.line.fact(Generation(1)).is_none());
    }
}
