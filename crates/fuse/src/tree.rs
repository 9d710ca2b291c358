//! The files of a mount: their names, numbers and attributes. They stay the same as long as it lasts.

use std::ffi::OsStr;
use std::time::SystemTime;

use fuser::{FileAttr, FileType, INodeNo};

/// Makes a file's text. Called each time the file is opened, on a thread of the mount, so it may block.
pub type Text = Box<dyn Fn() -> String + Send + Sync>;

/// The texts beside the array.
pub struct Files {
    /// What `mdstat` says.
    pub mdstat: Text,
    /// The files in `md`: names and contents as in `/sys/block/mdN/md`, line end included.
    pub attributes: Vec<(String, Text)>,
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
    /// An attribute, by its place in the list.
    Attribute(usize),
}

/// All files.
pub struct Tree {
    name: String,
    files: Files,
    size: u64,
    block: u32,
    writable: bool,
    owner: (u32, u32),
    since: SystemTime,
}

/// Inode numbers of attributes follow those of the other files.
const FIRST_ATTRIBUTE: u64 = 5;

impl Tree {
    /// With an array of `size` bytes under this name.
    pub fn new(name: &str, files: Files, size: u64, block: u32, writable: bool) -> Tree {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Tree { name: name.to_owned(), files, size, block: block.max(4096), writable, owner, since: SystemTime::now() }
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
                let index = usize::try_from(n.checked_sub(FIRST_ATTRIBUTE)?).ok()?;
                (index < self.files.attributes.len()).then_some(Node::Attribute(index))
            }
        }
    }

    pub fn find(&self, parent: Node, name: &OsStr) -> Option<Node> {
        self.children(parent)?.into_iter().find(|(child, _)| name == OsStr::new(child)).map(|(_, node)| node)
    }

    /// What a directory holds.
    pub fn children(&self, parent: Node) -> Option<Vec<(&str, Node)>> {
        match parent {
            Node::Root => Some(vec![(&self.name, Node::Array), (MDSTAT, Node::Mdstat), (MD, Node::Md)]),
            Node::Md => {
                let names = self.files.attributes.iter().enumerate();
                Some(names.map(|(n, (name, _))| (name.as_str(), Node::Attribute(n))).collect())
            }
            Node::Array | Node::Mdstat | Node::Attribute(_) => None,
        }
    }

    /// The text of a text file, as of now.
    pub fn text(&self, node: Node) -> Option<String> {
        match node {
            Node::Mdstat => Some((self.files.mdstat)()),
            Node::Attribute(n) => self.files.attributes.get(n).map(|(_, text)| text()),
            Node::Root | Node::Array | Node::Md => None,
        }
    }

    pub fn count(&self) -> u64 {
        FIRST_ATTRIBUTE - 1 + self.files.attributes.len() as u64
    }

    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Text files have size 0, like those of /proc: how long they are shows when they are read.
    pub fn attr(&self, node: Node) -> FileAttr {
        let (size, perm) = match node {
            Node::Array if self.writable => (self.size, 0o600),
            Node::Array => (self.size, 0o400),
            Node::Root | Node::Md => (0, 0o555),
            Node::Mdstat | Node::Attribute(_) => (0, 0o444),
        };
        let (kind, nlink) = match node {
            Node::Root => (FileType::Directory, 3),
            Node::Md => (FileType::Directory, 2),
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
            Node::Attribute(n) => FIRST_ATTRIBUTE + n as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_to_the_same_files() {
        let text = |s: &'static str| -> Text { Box::new(move || s.to_owned()) };
        let attributes = vec![("level".to_owned(), text("raid6\n")), ("degraded".to_owned(), text("0\n"))];
        let files = Files { mdstat: text("Personalities\n"), attributes };
        let tree = Tree::new("md0", files, 1 << 20, 512, true);
        let mut all = vec![Node::Root];
        for dir in [Node::Root, Node::Md] {
            for (name, node) in tree.children(dir).unwrap() {
                assert_eq!(tree.find(dir, OsStr::new(name)), Some(node));
                all.push(node);
            }
        }
        assert_eq!(all.len() as u64, tree.count());
        for node in all {
            assert_eq!(tree.node(node.number()), Some(node));
        }
        assert_eq!(tree.node(INodeNo(tree.count() + 1)), None);
        assert_eq!(tree.node(INodeNo(0)), None);
        assert_eq!(tree.text(Node::Attribute(1)).as_deref(), Some("0\n"));
        assert!(Tree::is_usable_name("md0") && !Tree::is_usable_name("md") && !Tree::is_usable_name("a/b"));
    }
}
