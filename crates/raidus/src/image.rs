//! Image files made for a new array.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Failure;

/// Files that were just made; removed again unless they are kept.
#[derive(Default)]
pub struct NewImages(Vec<PathBuf>);

impl NewImages {
    /// Makes a sparse file of `bytes` zeroes. A file that exists is never touched.
    pub fn make(&mut self, path: &Path, bytes: u64) -> Result<(), Failure> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file: File = file.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Failure::ImageExists { path: path.to_owned() },
            _ => Failure::write(path.to_owned(), source),
        })?;
        self.0.push(path.to_owned());
        file.set_len(bytes).map_err(|source| Failure::write(path.to_owned(), source))
    }

    /// They are somebody's now.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewImages {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
