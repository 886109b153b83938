//! Writes archives in the format that the kernel unpacks at its start (`newc`).

use std::collections::BTreeMap;

/// Files by path, written with the folders that they are in.
#[derive(Default)]
pub struct Tree {
    nodes: BTreeMap<String, (u32, Vec<u8>)>,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Tree {
    pub fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.add(path, FILE, bytes);
    }

    pub fn program(&mut self, path: &str, bytes: Vec<u8>) {
        self.add(path, PROGRAM, bytes);
    }

    pub fn link(&mut self, path: &str, to: &str) {
        self.add(path, LINK, to.as_bytes().to_vec());
    }

    pub fn folder(&mut self, path: &str) {
        self.add(path, FOLDER, Vec::new());
    }

    pub fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path.trim_start_matches('/'))
    }

    fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.nodes.entry(path[..at].to_owned()).or_insert((FOLDER, Vec::new()));
        }
        self.nodes.insert(path.to_owned(), (mode, bytes));
    }

    /// The archive. Names sort behind their folders.
    pub fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, (mode, bytes))) in self.nodes.iter().enumerate() {
            entry(&mut out, number + 1, path, *mode, bytes);
        }
        entry(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn entry(out: &mut Vec<u8>, number: usize, path: &str, mode: u32, bytes: &[u8]) {
    // inode, mode, uid, gid, links, mtime, size, 4 device numbers, length of the name, checksum
    let fields = [number, mode as usize, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, path.len() + 1, 0];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08x}").bytes());
    }
    out.extend(path.bytes());
    out.push(0);
    pad(out);
    out.extend(bytes);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_folders_before_their_files_and_every_part_is_aligned() {
        let mut tree = Tree::default();
        tree.file("/a/b/c", b"hello".to_vec());
        let archive = tree.archive();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive).into_owned();
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0") && at("a/b/c\0") < at("TRAILER!!!"));
        assert_eq!(archive.windows(6).filter(|window| window == b"070701").count(), 4);
        assert_eq!(&archive[at("hello")..at("hello") + 8], b"hello\0\0\0");
    }
}
