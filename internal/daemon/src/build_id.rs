//! What tells two builds of evermux apart (decision 0022): the version, and a hash of the program's own file.
//!
//! The file is opened by what the process runs, not by its name: an upgrade replaces the name first.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Bytes read at a time: the whole program is not held.
const CHUNK: usize = 64 << 10;
/// Hexadecimal digits of the hash: enough for the builds that one person ever has, few enough to be read out.
const DIGITS: usize = 16;

/// The build of this process, such as `0.1.0+c0ffee0123456789`. The first call reads the program's file, some 10 MB:
/// not on a thread that others wait for.
///
/// # Errors
/// If the program's file cannot be read. The next call tries again.
pub fn build() -> io::Result<&'static str> {
    static BUILD: OnceLock<String> = OnceLock::new();
    if let Some(build) = BUILD.get() {
        return Ok(build);
    }
    let hash = hash_of(File::open(program()?)?)?;
    Ok(BUILD.get_or_init(|| format!("{}+{hash}", env!("CARGO_PKG_VERSION"))))
}

fn program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}

fn hash_of(mut file: impl io::Read) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => hasher.update(chunk.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
    }
    let mut hash = hasher.finalize().to_hex().to_string();
    hash.truncate(DIGITS);
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_same_each_time_and_another_for_other_bytes() {
        let began = std::time::Instant::now();
        let build = build().unwrap();
        println!("{:?}", began.elapsed());
        assert_eq!(self::build().unwrap(), build);
        let (version, hash) = build.split_once('+').unwrap();
        assert_eq!((version, hash.len()), (env!("CARGO_PKG_VERSION"), DIGITS));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(hash_of(own.as_slice()).unwrap(), hash);
        // What a rebuild of one line changes, at the end of a large file.
        let mut other = own;
        *other.last_mut().unwrap() ^= 1;
        assert_ne!(hash_of(other.as_slice()).unwrap(), hash);
    }
}
