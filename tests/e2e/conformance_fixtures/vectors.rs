//! The canonical-JSON vectors and the keyed digests, against the code that records are written and checked with.

use std::collections::BTreeSet;

use evermux_store::{Key, bare};
use serde::Deserialize;

use super::{VERSION, files, read};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    v: u64,
    #[serde(rename = "about")]
    _about: String,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    profile: Profile,
    input: String,
    canonical: Option<String>,
    refused: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Profile {
    Full,
    Record,
}

/// Of the profile `full` the record's part of JSON has nothing, and says so.
#[track_caller]
fn check(vector: &Vector) {
    let found = bare::canonical(vector.input.as_bytes());
    let name = &vector.name;
    match (&vector.canonical, &vector.refused, vector.profile) {
        (Some(canonical), None, Profile::Record) => {
            assert_eq!(found.as_ref(), Some(canonical), "{name}");
            assert_eq!(bare::canonical(canonical.as_bytes()).as_ref(), Some(canonical), "{name}: read again");
        }
        (Some(_), None, Profile::Full) => assert_eq!(found, None, "{name} is not in the part of a record"),
        (None, Some(why), Profile::Record) => assert_eq!(found, None, "{name}: {why}"),
        _ => panic!("{name}: either canonical or refused, and what is refused is so in every profile"),
    }
}

#[test]
fn canonical_json() {
    let mut names = BTreeSet::new();
    let all = files("canonical-json");
    assert!(all.len() > 1);
    for file in all {
        let vectors: Vectors = read(&format!("canonical-json/{file}.json"));
        assert_eq!(vectors.v, VERSION, "{file}");
        let records = vectors.vectors.iter().filter(|vector| vector.profile == Profile::Record).count();
        assert!(records > 0, "{file}");
        for vector in &vectors.vectors {
            assert!(names.insert(vector.name.clone()), "{} twice", vector.name);
            check(vector);
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Digests {
    v: u64,
    #[serde(rename = "about")]
    _about: String,
    key: String,
    vectors: Vec<Hashed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hashed {
    class: String,
    text: String,
    hash: String,
}

fn key(hex: &str) -> Key {
    assert_eq!(hex.len(), 64);
    Key::from_bytes(std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()))
}

#[test]
fn keyed_digests() {
    assert_eq!(files("evermux"), ["keyed-digests".to_owned()].into());
    let digests: Digests = read("evermux/keyed-digests.json");
    assert_eq!(digests.v, VERSION);
    assert!(!digests.vectors.is_empty());
    for vector in digests.vectors {
        let found = key(&digests.key).digest(&vector.class, vector.text.as_bytes());
        assert_eq!(found.to_string(), vector.hash, "{} over {}", vector.class, vector.text);
    }
}
