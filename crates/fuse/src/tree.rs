//! The files of a mount: their names, numbers and attributes.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use fuser::{FileAttr, FileType, INodeNo};

/// The texts beside the array. All of it is asked for by threads of the mount, and may block.
pub trait Texts: Send + Sync {
    /// What `mdstat` says.
    fn mdstat(&self) -> String;

    /// The files in `md` at this moment: paths below it, as in `/sys/block/mdN/md`, with at most one directory between.
    fn attributes(&self) -> Vec<AttributeFile>;

    /// What one of them says, line end included.
    fn read(&self, path: &str) -> Option<String>;

    /// Sets one of them.
    ///
    /// # Errors
    /// What the writer is told.
    fn write(&self, path: &str, value: &str) -> Result<(), WriteError>;
}

/// A file in `md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeFile {
    /// `array_state`, `dev-sda/state`.
    pub path: String,
    /// It can be set.
    pub writable: bool,
}

/// Why an attribute is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// It cannot have this value (EINVAL).
    #[error("invalid value")]
    Invalid,
    /// Not now (EBUSY).
    #[error("busy")]
    Busy,
    /// The array is read-only (EROFS).
    #[error("read-only")]
    ReadOnly,
    /// The array has stopped (ENODEV).
    #[error("stopped")]
    Stopped,
    /// Anything else (EIO).
    #[error("failed")]
    Failed,
}

const MDSTAT: &str = "mdstat";
const MD: &str = "md";

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Root,
    Array,
    Mdstat,
    /// The directory of attributes.
    Md,
    /// Something in that, by its number.
    Entry(usize),
}

/// All files. Those in `md` come and go with members; what was seen once keeps its number.
pub struct Tree {
    name: String,
    texts: Arc<dyn Texts>,
    size: u64,
    block: u32,
    writable: bool,
    owner: (u32, u32),
    since: SystemTime,
    entries: Mutex<Vec<Entry>>,
}

/// A file or directory in `md`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    is_dir: bool,
    writable: bool,
}

/// Inode numbers of entries follow those of the other files.
const FIRST_ENTRY: u64 = 5;

impl Tree {
    /// With an array of `size` bytes under this name.
    pub fn new(name: &str, texts: Arc<dyn Texts>, size: u64, block: u32, writable: bool) -> Tree {
        Tree {
            name: name.to_owned(),
            texts,
            size,
            block: block.max(4096),
            writable,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            since: SystemTime::now(),
            entries: Mutex::default(),
        }
    }

    /// Whether an array can have this name here.
    pub fn is_usable_name(name: &str) -> bool {
        let special = ["", ".", "..", MD, MDSTAT].contains(&name);
        !special && name.len() <= 255 && !name.contains(['/', '\0'])
    }

    pub fn node(&self, number: INodeNo) -> Option<Node> {
        match number.0 {
            1 => Some(Node::Root),
            2 => Some(Node::Array),
            3 => Some(Node::Mdstat),
            4 => Some(Node::Md),
            n => {
                let index = usize::try_from(n.checked_sub(FIRST_ENTRY)?).ok()?;
                (index < self.entries().len()).then_some(Node::Entry(index))
            }
        }
    }

    pub fn find(&self, parent: Node, name: &OsStr) -> Option<Node> {
        self.children(parent)?.into_iter().find(|(child, _)| name == OsStr::new(child)).map(|(_, node)| node)
    }

    /// What a directory holds.
    pub fn children(&self, parent: Node) -> Option<Vec<(String, Node)>> {
        let dir = match parent {
            Node::Root => {
                let name = self.name.clone();
                return Some(vec![(name, Node::Array), (MDSTAT.to_owned(), Node::Mdstat), (MD.to_owned(), Node::Md)]);
            }
            Node::Md => String::new(),
            Node::Entry(_) => self.entry(parent).filter(|entry| entry.is_dir)?.path + "/",
            Node::Array | Node::Mdstat => return None,
        };
        let mut children: Vec<(String, Node)> = Vec::new();
        for file in self.texts.attributes() {
            let Some(rest) = file.path.strip_prefix(&dir) else { continue };
            let (name, is_dir) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
            if !children.iter().any(|(known, _)| known == name) {
                let writable = file.writable && !is_dir;
                let node = self.intern(Entry { path: format!("{dir}{name}"), is_dir, writable });
                children.push((name.to_owned(), node));
            }
        }
        Some(children)
    }

    /// The number of an entry.
    fn intern(&self, entry: Entry) -> Node {
        let mut entries = self.entries();
        let known = entries.iter().position(|known| *known == entry);
        Node::Entry(known.unwrap_or_else(|| {
            entries.push(entry);
            entries.len() - 1
        }))
    }

    /// The text of a text file, as of now.
    pub fn text(&self, node: Node) -> Option<String> {
        match node {
            Node::Mdstat => Some(self.texts.mdstat()),
            Node::Entry(_) => self.attribute(node).and_then(|path| self.texts.read(&path)),
            Node::Root | Node::Array | Node::Md => None,
        }
    }

    /// The path of an attribute.
    pub fn attribute(&self, node: Node) -> Option<String> {
        self.entry(node).filter(|entry| !entry.is_dir).map(|entry| entry.path)
    }

    /// Whether writing to it sets something.
    pub fn is_settable(&self, node: Node) -> bool {
        self.entry(node).is_some_and(|entry| entry.writable)
    }

    pub fn texts(&self) -> Arc<dyn Texts> {
        Arc::clone(&self.texts)
    }

    /// Whether it may be gone by now, or something else.
    pub fn is_passing(&self, node: Node) -> bool {
        matches!(node, Node::Entry(_))
    }

    pub fn count(&self) -> u64 {
        FIRST_ENTRY - 1 + self.texts.attributes().len() as u64
    }

    pub fn writable(&self) -> bool {
        self.writable
    }

    fn entry(&self, node: Node) -> Option<Entry> {
        let Node::Entry(index) = node else { return None };
        self.entries().get(index).cloned()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Text files have size 0, like those of /proc: how long they are shows when they are read.
    pub fn attr(&self, node: Node) -> FileAttr {
        let (size, perm) = match node {
            Node::Array if self.writable => (self.size, 0o600),
            Node::Array => (self.size, 0o400),
            Node::Root | Node::Md => (0, 0o555),
            Node::Mdstat => (0, 0o444),
            Node::Entry(_) => match self.entry(node) {
                Some(entry) if entry.is_dir => (0, 0o555),
                Some(entry) if entry.writable => (0, 0o644),
                _ => (0, 0o444),
            },
        };
        let (kind, nlink) = match node {
            Node::Root => (FileType::Directory, 3),
            Node::Md => (FileType::Directory, 2),
            Node::Entry(_) if self.entry(node).is_some_and(|entry| entry.is_dir) => (FileType::Directory, 2),
            _ => (FileType::RegularFile, 1),
        };
        FileAttr {
            ino: node.number(),
            size,
            blocks: size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.block,
            flags: 0,
        }
    }
}

impl Node {
    pub fn number(self) -> INodeNo {
        INodeNo(match self {
            Node::Root => INodeNo::ROOT.0,
            Node::Array => 2,
            Node::Mdstat => 3,
            Node::Md => 4,
            Node::Entry(n) => FIRST_ENTRY + n as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files, and a directory.
    struct Fixed;

    impl Texts for Fixed {
        fn mdstat(&self) -> String {
            "Personalities\n".to_owned()
        }

        fn attributes(&self) -> Vec<AttributeFile> {
            let file = |path: &str, writable| AttributeFile { path: path.to_owned(), writable };
            vec![file("level", false), file("sync_action", true), file("dev-a/state", true), file("dev-a/slot", false)]
        }

        fn read(&self, path: &str) -> Option<String> {
            Some(format!("{path} it is\n"))
        }

        fn write(&self, _: &str, _: &str) -> Result<(), WriteError> {
            Err(WriteError::Busy)
        }
    }

    #[test]
    fn names_and_numbers_lead_to_the_same_files() {
        let tree = Tree::new("md0", Arc::new(Fixed), 1 << 20, 512, true);
        let mut all = vec![Node::Root];
        let mut dirs = vec![Node::Root];
        while let Some(dir) = dirs.pop() {
            for (name, node) in tree.children(dir).unwrap() {
                assert_eq!(tree.find(dir, OsStr::new(&name)), Some(node));
                assert_eq!(tree.node(node.number()), Some(node));
                assert_eq!(tree.children(node).is_some(), tree.attr(node).kind == FileType::Directory);
                if tree.children(node).is_some() {
                    dirs.push(node);
                }
                assert!(!all.contains(&node), "{name}");
                all.push(node);
            }
        }
        assert_eq!(all.len(), 9);
        assert_eq!(tree.node(INodeNo(10)), None);
        assert_eq!(tree.node(INodeNo(0)), None);
        let dir = tree.find(Node::Md, OsStr::new("dev-a")).unwrap();
        let state = tree.find(dir, OsStr::new("state")).unwrap();
        assert_eq!(tree.text(state).as_deref(), Some("dev-a/state it is\n"));
        assert!(tree.is_settable(state) && !tree.is_settable(dir) && tree.attribute(dir).is_none());
        assert_eq!((tree.attr(state).perm, tree.attr(dir).perm), (0o644, 0o555));
        assert!(Tree::is_usable_name("md0") && !Tree::is_usable_name("md") && !Tree::is_usable_name("a/b"));
    }
}
