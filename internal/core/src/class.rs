//! Which of its client's abilities a session has declared upstream: frozen at `initialize`, so part of the pool key.
//!
//! Few classes, so that clients still meet: in a pool no roots and nothing experimental are declared (D6), because
//! they belong to one client. With `share = "client"` the client's own declaration goes through.

use mcp_wire::Message;
use serde_json::value::RawValue;

use crate::names::Digest;

/// The abilities of a client that decide which session it may use, and how its link is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Class(pub u8);

impl Class {
    /// It lets servers sample its model.
    pub const SAMPLING: Self = Self(1);
    /// It answers elicitation forms.
    pub const FORM: Self = Self(2);
    /// It opens elicitation URLs.
    pub const URL: Self = Self(4);
    /// It is no shim of ours: it numbers no messages, and comes back by event id.
    pub const PLAIN: Self = Self(32);
    /// It has a session of its own (`share = "client"`).
    pub const OWN: Self = Self(64);
    /// It brought no identity: it uses whatever the configuration makes the default, also after a change of it.
    pub const DEFAULT_IDENTITY: Self = Self(128);

    const ABILITIES: u8 = 7;

    /// The class of a client by its `initialize`. An empty `elicitation` is the form kind (2025-11-25,
    /// "Elicitation", capabilities).
    pub fn of(initialize: &Message) -> Self {
        let params = initialize.params().unwrap_or(b"{}");
        let Ok(Hello { capabilities: Some(able), .. }) = serde_json::from_slice(params) else {
            return Self::default();
        };
        let Ok(able) = serde_json::from_str::<Abilities<'_>>(able.get()) else { return Self::default() };
        let mut class = Self::default();
        if is_object(able.sampling) {
            class = class.with(Self::SAMPLING);
        }
        if is_object(able.elicitation) {
            let kinds = able.elicitation.and_then(|raw| serde_json::from_str::<Kinds<'_>>(raw.get()).ok());
            let Kinds { form, url } = kinds.unwrap_or_default();
            if is_object(url) {
                class = class.with(Self::URL);
            }
            if is_object(form) || !is_object(url) {
                class = class.with(Self::FORM);
            }
        }
        class
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What two links must have in common to share a session.
    pub(crate) const fn abilities(self) -> Self {
        Self(self.0 & Self::ABILITIES)
    }

    /// As it stands in a fingerprint. No secret, so no hash.
    pub(crate) fn digest(self) -> Digest {
        Digest(u128::from(self.abilities().0))
    }

    /// The class that a session's fingerprint holds.
    pub(crate) fn of_digest(digest: Digest) -> Self {
        Self(u8::try_from(digest.0).unwrap_or_default()).abilities()
    }

    /// Whether a server that was told of this class may send such a request. What evermux does not know is not
    /// its to forbid.
    pub fn may_be_asked(self, method: &str, mode: Option<&str>) -> bool {
        match method {
            "sampling/createMessage" => self.has(Self::SAMPLING),
            "elicitation/create" if mode == Some("url") => self.has(Self::URL),
            "elicitation/create" => self.has(Self::FORM),
            "roots/list" | "tasks/get" | "tasks/result" | "tasks/list" | "tasks/cancel" => false,
            _ => true,
        }
    }

    fn capabilities(self) -> String {
        let mut members = Vec::new();
        if self.has(Self::SAMPLING) {
            members.push(r#""sampling":{}"#);
        }
        match (self.has(Self::FORM), self.has(Self::URL)) {
            (true, true) => members.push(r#""elicitation":{"form":{},"url":{}}"#),
            // Servers of 2025-06-18 know the empty form only.
            (true, false) => members.push(r#""elicitation":{}"#),
            (false, true) => members.push(r#""elicitation":{"url":{}}"#),
            (false, false) => {}
        }
        format!("{{{}}}", members.join(","))
    }
}

/// What is said in `initialize`, as raw JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The protocol revision.
    pub version: String,
    /// `clientInfo`.
    pub client_info: String,
    /// `capabilities`.
    pub capabilities: String,
}

const CLIENT_INFO: &str = concat!(r#"{"name":"evermux","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

impl Declared {
    /// For a session that clients of this class share.
    pub(crate) fn pooled(class: Class) -> Self {
        Self {
            version: mcp_wire::version::LATEST_SESSION.to_owned(),
            client_info: CLIENT_INFO.to_owned(),
            capabilities: class.capabilities(),
        }
    }

    /// A client's own words (`share = "client"`). `version`: what was negotiated with it.
    pub(crate) fn own(initialize: &Message, version: &str) -> Self {
        let hello = initialize.params().and_then(|params| serde_json::from_slice::<Hello<'_>>(params).ok());
        let raw =
            |value: Option<&RawValue>| value.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned());
        let hello = hello.unwrap_or_default();
        Self {
            version: version.to_owned(),
            client_info: raw(hello.client_info),
            capabilities: raw(hello.capabilities),
        }
    }

    /// `version`: what is offered, which may be an older revision than the declaration's.
    pub(crate) fn params(&self, version: &str) -> String {
        format!(
            r#"{{"protocolVersion":"{version}","capabilities":{},"clientInfo":{}}}"#,
            self.capabilities, self.client_info
        )
    }
}

#[derive(Default, serde::Deserialize)]
struct Hello<'a> {
    #[serde(borrow)]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "clientInfo")]
    client_info: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct Abilities<'a> {
    #[serde(borrow)]
    sampling: Option<&'a RawValue>,
    #[serde(borrow)]
    elicitation: Option<&'a RawValue>,
}

#[derive(Default, serde::Deserialize)]
struct Kinds<'a> {
    #[serde(borrow)]
    form: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
}

fn is_object(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get().starts_with('{'))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn of(capabilities: &str) -> Class {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{{capabilities}}}}}"#);
        Class::of(&Message::parse(Bytes::from(text)).unwrap())
    }

    #[test]
    fn classes_are_what_clients_declare() {
        let both = Class::FORM.with(Class::URL);
        for (declared, class) in [
            ("", Class::default()),
            (r#""capabilities":{}"#, Class::default()),
            (r#""capabilities":{"roots":{"listChanged":true},"experimental":{"x":{}}}"#, Class::default()),
            (r#""capabilities":{"sampling":{"tools":{}}}"#, Class::SAMPLING),
            (r#""capabilities":{"elicitation":{}}"#, Class::FORM),
            (r#""capabilities":{"elicitation":{"applyDefaults":true}}"#, Class::FORM),
            (r#""capabilities":{"elicitation":{"form":{}}}"#, Class::FORM),
            (r#""capabilities":{"elicitation":{"url":{}}}"#, Class::URL),
            (r#""capabilities":{"elicitation":{"form":{},"url":{}}}"#, both),
            (r#""capabilities":{"elicitation":null,"sampling":null}"#, Class::default()),
            (r#""capabilities":7"#, Class::default()),
        ] {
            assert_eq!(of(declared), class, "{declared}");
        }
    }

    #[test]
    fn a_pooled_session_declares_its_class_and_is_read_as_it() {
        for bits in 0..8 {
            let class = Class(bits);
            let declared = Declared::pooled(class.with(Class::DEFAULT_IDENTITY));
            assert_eq!(of(&format!(r#""capabilities":{}"#, declared.capabilities)), class, "{bits}");
        }
    }

    #[test]
    fn a_client_of_its_own_speaks_in_its_own_words() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"roots":{ },"x":1e400},"clientInfo":{"name":"me"}}}"#;
        let declared = Declared::own(&Message::parse(Bytes::from(text)).unwrap(), "2025-06-18");
        let expected = r#"{"protocolVersion":"2025-06-18","capabilities":{"roots":{ },"x":1e400},"clientInfo":{"name":"me"}}"#;
        assert_eq!(declared.params(&declared.version), expected);
    }
}
