//! Writer of the journal file. Lines are appended and flushed at every commit of a round; write errors do not
//! stop the campaign.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::store::{PRIVATE, StoreError};
use fedspan_files::regular;

/// File name of the journal in the state directory.
pub const FILE: &str = "arrivals.jsonl";

/// Length of the buffer, in bytes, from which on the buffer is written without waiting for a commit.
const PENDING_MAX: usize = 1 << 16;

/// Open journal file. Lines are buffered until [`Journal::flush`], until the buffer is full, or until drop.
///
/// A write error does not stop the campaign. The first error is logged and ends the journal file, because a
/// file with a gap would misrepresent the campaign. All lines after the error are counted as lost.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Open file; `None` after a write error.
    file: Option<File>,
    /// Lines that are not written yet.
    pending: Vec<u8>,
    /// Number of lines in the file and in `pending`.
    lines: u64,
    /// Number of lines in `pending`.
    pending_lines: u64,
    /// Number of lines that could not be written.
    lost: u64,
}

impl Journal {
    /// Opens the journal file of a state directory, or creates it. An incomplete last line, which a crash may
    /// have left, is removed.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be used.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let mut options = OpenOptions::new();
        let file = regular(&path).and_then(|()| {
            options.create(true).truncate(false).read(true).write(true).mode(PRIVATE).open(&path)
        });
        let file_and_lines = file.and_then(|mut file| {
            let end = last_line_end(&mut file)?;
            file.set_len(end)?;
            let lines = count_lines(&mut file)?;
            file.seek(SeekFrom::Start(end))?;
            Ok((file, lines))
        });
        match file_and_lines {
            Ok((file, lines)) => Ok(Self::with_file(path, file, lines)),
            Err(error) => Err(StoreError::Io { path, error }),
        }
    }

    fn with_file(path: PathBuf, file: File, lines: u64) -> Self {
        Self { path, file: Some(file), pending: Vec::new(), lines, pending_lines: 0, lost: 0 }
    }

    /// Returns the number of lines.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Appends lines that are in the store but, after a crash, missing from the file.
    pub fn catch_up(&mut self, lines: &[String]) {
        self.append(lines);
        self.flush();
    }

    /// Appends lines.
    pub fn append(&mut self, lines: &[String]) {
        for line in lines {
            self.pending.extend_from_slice(line.as_bytes());
            self.pending.push(b'\n');
            self.lines += 1;
            self.pending_lines += 1;
        }
        if self.file.is_none() {
            self.drop_pending();
        } else if self.pending.len() > PENDING_MAX {
            self.flush();
        }
    }

    /// Writes the buffer to the file without a sync, so lines may be missing after a power cut.
    pub fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        match file.write_all(&self.pending) {
            Ok(()) => {
                self.pending.clear();
                self.pending_lines = 0;
            }
            Err(error) => self.stop_writing(&error),
        }
    }

    /// Returns the number of lines that could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Logs a write error and ends the journal file.
    fn stop_writing(&mut self, error: &std::io::Error) {
        tracing::warn!(path = %self.path.display(), %error, "journal cannot be written and ends here; the campaign continues");
        self.file = None;
        self.drop_pending();
    }

    /// Counts the buffered lines as lost and discards them.
    fn drop_pending(&mut self) {
        self.lost += std::mem::take(&mut self.pending_lines);
        self.pending.clear();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Returns the number of lines of a file.
fn count_lines(file: &mut File) -> std::io::Result<u64> {
    let mut lines = 0;
    let mut block = vec![0; 1 << 16];
    file.seek(SeekFrom::Start(0))?;
    loop {
        match file.read(&mut block)? {
            0 => return Ok(lines),
            read => {
                lines += block.iter().take(read).filter(|byte| **byte == b'\n').map(|_| 1).sum::<u64>();
            }
        }
    }
}

/// Returns the offset after the last complete line.
fn last_line_end(file: &mut File) -> std::io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = Vec::new();
    while end > 0 {
        let from = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(from))?;
        block.clear();
        Read::by_ref(file).take(end - from).read_to_end(&mut block)?;
        if let Some(index) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(from + index as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::journal::{Committed, JournalEntry, read};
    use fedspan_engine::{DeviceId, Millis};

    fn lines<const N: usize>(rounds: [u32; N]) -> [String; N] {
        rounds.map(|round| serde_json::to_string(&committed_entry(round)).unwrap())
    }

    fn committed_entry(round: u32) -> JournalEntry {
        let representation = "00000000".to_owned();
        JournalEntry::Committed(Committed {
            at: Millis::new(1),
            round,
            participants: [3, 1].map(DeviceId).to_vec(),
            representation,
        })
    }

    #[test]
    fn torn_last_line_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        Journal::open(directory.path()).unwrap().append(&lines([1, 2]));
        let content = std::fs::read(&path).unwrap();
        for torn_len in [0, 1, content.len() / 2 - 1, content.len() / 2 + 1, content.len() - 1] {
            std::fs::write(&path, &content[..torn_len]).unwrap();
            Journal::open(directory.path()).unwrap().append(&lines([3]));
            let complete_lines = content[..torn_len].iter().filter(|byte| **byte == b'\n').count();
            let lines = read(&path).unwrap();
            assert_eq!(lines.len(), complete_lines + 1);
            assert_eq!(lines.last(), Some(&committed_entry(3)));
        }
    }

    #[test]
    fn lost_lines_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        std::fs::write(&path, "").unwrap();
        // The file is read-only, so every write fails.
        let mut journal = Journal::with_file(path.clone(), File::open(&path).unwrap(), 0);
        journal.append(&lines([1, 2]));
        assert_eq!(journal.lost(), 0);
        journal.flush();
        assert_eq!(journal.lost(), 2);
        journal.append(&lines([3]));
        journal.flush();
        assert_eq!(journal.lost(), 3);
    }
}
