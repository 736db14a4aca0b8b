//! The headers of a request that are evermux's own or MCP's, found in one pass: looked up one by one they were a fortieth
//! of a call.

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::downstream::{Reply, malformed};

/// One of them; each has its place here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Session,
    Revision,
    EventId,
    /// The number that a shim gives to each of its messages.
    Seq,
    /// Every number below is settled for the shim.
    Ack,
    /// Of a shim: more messages wait for the head of this one.
    More,
    /// Whose credentials a new link uses.
    Identity,
    /// On a relayed request: it is part of a 2025-03-26 batch.
    Batched,
    /// On a relayed request: this process has not got what it is about.
    DeclinedBy,
}

/// By the place of each field; and how it is written to people.
static NAMES: [(HeaderName, &str); 9] = [
    (mcp_http::SESSION_ID, "Mcp-Session-Id"),
    (mcp_http::PROTOCOL_VERSION, "MCP-Protocol-Version"),
    (mcp_http::LAST_EVENT_ID, "Last-Event-ID"),
    (HeaderName::from_static("evermux-seq"), "Evermux-Seq"),
    (HeaderName::from_static("evermux-ack"), "Evermux-Ack"),
    (HeaderName::from_static("evermux-more"), "Evermux-More"),
    (HeaderName::from_static("evermux-identity"), "Evermux-Identity"),
    (HeaderName::from_static("evermux-batched"), "Evermux-Batched"),
    (HeaderName::from_static("evermux-declined-by"), "Evermux-Declined-By"),
];

impl Field {
    pub(crate) const fn name(self) -> &'static HeaderName {
        &NAMES[self as usize].0
    }
}

/// What a request says in them.
#[derive(Default)]
pub(crate) struct Fields<'a>([Said<'a>; NAMES.len()]);

#[derive(Default, Clone, Copy)]
enum Said<'a> {
    #[default]
    Nothing,
    Once(&'a HeaderValue),
    /// More than once; the first of them.
    Again(&'a HeaderValue),
}

impl<'a> Fields<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut fields = Self::default();
        for (name, value) in headers {
            let place = NAMES.iter().position(|(known, _)| known == name);
            if let Some(said) = place.and_then(|place| fields.0.get_mut(place)) {
                *said = match *said {
                    Said::Nothing => Said::Once(value),
                    Said::Once(first) | Said::Again(first) => Said::Again(first),
                };
            }
        }
        fields
    }

    const fn said(&self, field: Field) -> Said<'a> {
        self.0[field as usize]
    }

    pub(crate) const fn has(&self, field: Field) -> bool {
        !matches!(self.said(field), Said::Nothing)
    }

    /// The first value.
    pub(crate) const fn first(&self, field: Field) -> Option<&'a HeaderValue> {
        match self.said(field) {
            Said::Nothing => None,
            Said::Once(value) | Said::Again(value) => Some(value),
        }
    }

    /// A value that may be absent, but not of another form, and not there twice.
    pub(crate) fn checked<T>(
        &self,
        field: Field,
        form: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Box<Reply>> {
        let value = match self.said(field) {
            Said::Nothing => return Ok(None),
            Said::Once(value) => value.to_str().ok().and_then(parse),
            Said::Again(_) => None,
        };
        value.map(Some).ok_or_else(|| {
            let shown = NAMES[field as usize].1;
            let text = format!("the header {shown} must be {form}, once");
            Box::new(malformed(StatusCode::BAD_REQUEST, &text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Field; NAMES.len()] = [
        Field::Session,
        Field::Revision,
        Field::EventId,
        Field::Seq,
        Field::Ack,
        Field::More,
        Field::Identity,
        Field::Batched,
        Field::DeclinedBy,
    ];

    #[test]
    fn each_field_has_its_own_name() {
        for (place, field) in ALL.into_iter().enumerate() {
            assert_eq!(field as usize, place);
            let (name, shown) = &NAMES[place];
            assert_eq!(name.as_str(), shown.to_ascii_lowercase());
            let wanted = format!("{field:?}").to_ascii_lowercase();
            let letters = shown.to_ascii_lowercase().replace('-', "");
            assert!(letters.contains(&wanted) || wanted == "revision", "{field:?} is {shown}");
        }
    }

    #[test]
    fn a_field_is_said_once_or_again() {
        for field in ALL {
            let mut headers = HeaderMap::new();
            headers.insert("accept", HeaderValue::from_static("0"));
            let number = |fields: &Fields<'_>| {
                fields.checked(field, "a number", |text| text.parse::<u8>().ok()).map_err(|_| ())
            };
            let none = Fields::of(&headers);
            assert!(!none.has(field) && none.first(field).is_none());
            assert_eq!(number(&none), Ok(None));
            headers.append(field.name(), HeaderValue::from_static("1"));
            let once = Fields::of(&headers);
            assert_eq!(ALL.map(|other| once.has(other)), ALL.map(|other| other == field));
            assert_eq!(number(&once), Ok(Some(1)));
            headers.append(field.name(), HeaderValue::from_static("2"));
            let twice = Fields::of(&headers);
            assert_eq!(twice.first(field).map(HeaderValue::as_bytes), Some(&b"1"[..]));
            assert_eq!(number(&twice), Err(()));
            headers.insert(field.name(), HeaderValue::from_static("x"));
            assert_eq!(number(&Fields::of(&headers)), Err(()));
        }
    }
}
