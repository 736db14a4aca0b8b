//! Small files that are put in place at once and synced a moment later, together (decision 0027).
//!
//! A kill loses nothing that was written, synced or not; only a power cut does. So what nobody has built on yet need not
//! be waited for: it is settled before the first durable record, which is what builds on it.

use std::fs::File;
use std::io::{self, Write as _};

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::failpoint::failpoint;
use crate::file::temp_for;
use crate::witness;

/// What stands in the directory and would not survive a power cut.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    secrets: Vec<Secret>,
    /// The witness, through the descriptor that wrote to it, so that an error of that write is told.
    witness: Option<File>,
    /// The witness is a new file of its name.
    renamed: bool,
    /// Its name was synced by this process: one that was killed may have left it as it was.
    is_named: bool,
    /// A sync failed. The kernel may have dropped the pages and call the next sync a success, so nothing is synced twice:
    /// all of it is written afresh.
    afresh: bool,
}

#[derive(Debug)]
struct Secret {
    name: &'static str,
    bytes: Vec<u8>,
    file: File,
}

impl Unsettled {
    pub(crate) fn add_secret(&mut self, name: &'static str, bytes: &[u8], file: File) {
        self.secrets.retain(|secret| secret.name != name);
        self.secrets.push(Secret { name, bytes: bytes.to_vec(), file });
    }

    pub(crate) fn add_witness(&mut self, file: File, renamed: bool) {
        self.witness = Some(file);
        self.renamed |= renamed || !self.is_named;
    }

    fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.witness.is_none()
    }

    /// All files at once, so that a journalling file system takes them in one turn; then the names.
    fn sync(&self, state: &StateDir) -> io::Result<()> {
        let files: Vec<&File> =
            self.secrets.iter().map(|secret| &secret.file).chain(self.witness.as_ref()).collect();
        sync_together(&files)?;
        if !self.secrets.is_empty() {
            state.root().sync()?;
        }
        if self.renamed { state.journal().sync() } else { Ok(()) }
    }
}

fn sync_together(files: &[&File]) -> io::Result<()> {
    let Some((first, others)) = files.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let sync = |file: &File| file.sync_all();
        let start = |file| std::thread::Builder::new().spawn_scoped(scope, move || sync(file));
        let helped: Vec<_> = others.iter().map(|file| (*file, start(*file))).collect();
        let mut outcome = sync(first);
        for (file, helper) in helped {
            let one = match helper.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(synced)) => synced,
                Ok(Err(_panicked)) => Err(io::Error::other("a sync was not carried out")),
                // No thread to be had.
                Err(_) => sync(file),
            };
            outcome = outcome.and(one);
        }
        outcome
    })
}

impl StateDir {
    /// Makes durable what was put in place without a sync: a new key or token, a granted generation, lines of the
    /// witness. Blocks on the disk; returns at once if there is nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the disk does not take it. The next call writes all of it afresh.
    pub fn settle(&self) -> Result<(), StoreError> {
        // In the order in which a grant takes them.
        let (mut witness, mut unsettled) = (self.witness(), self.unsettled());
        if unsettled.is_empty() {
            return Ok(());
        }
        failpoint("settle.before_sync");
        let outcome = if unsettled.afresh {
            self.write_afresh(&unsettled, &mut witness)
        } else {
            unsettled.sync(self).map_err(|source| StoreError::io("cannot sync", self.path(), source))
        };
        match outcome {
            Ok(()) => {
                let is_named = unsettled.is_named || unsettled.witness.is_some();
                *unsettled = Unsettled { is_named, ..Unsettled::default() };
            }
            Err(_) => unsettled.afresh = true,
        }
        outcome
    }

    fn write_afresh(&self, unsettled: &Unsettled, witness: &mut witness::Witness) -> Result<(), StoreError> {
        for Secret { name, bytes, .. } in &unsettled.secrets {
            let replace = || -> io::Result<()> {
                let mut temp = temp_for(self.root(), name, false)?;
                temp.write_all(bytes)?;
                temp.as_file().sync_all()?;
                temp.persist(self.root().join(name)).map_err(|refused| refused.error)?;
                self.root().sync()
            };
            replace().map_err(|source| StoreError::io("cannot write", &self.root().join(name), source))?;
        }
        if unsettled.witness.is_none() {
            return Ok(());
        }
        // A successor may have written there since.
        witness.refresh(self)?;
        witness.compact(self)
    }
}

#[cfg(test)]
mod tests;
