//! Listening sockets. A Unix socket's file outlives a server that was killed; it is taken over only after nobody answers on it.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// TCP; port 0 takes any free one.
    Tcp(SocketAddr),
}

/// The port IANA assigned to NBD.
const NBD_PORT: u16 = 10809;

/// A place where a server listens. Dropping it removes a Unix socket's file.
#[derive(Debug)]
pub struct Endpoint {
    address: Address,
    file: Option<SocketFile>,
}

/// Why a socket could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server listens there.
    #[error("{0}: another server is listening there; stop it or choose another address")]
    InUse(Address),
    /// Something else is in the place of the socket.
    #[error("{}: exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Anything else.
    #[error("{address}: cannot listen: {source}")]
    Io {
        /// Where.
        address: Address,
        /// Why.
        source: io::Error,
    },
}

/// The file of our socket, told apart from one that took its place by its inode.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Listens at `address`. A Unix socket that nobody answers on is replaced.
pub fn listen(address: &Address) -> Result<(OwnedFd, Endpoint), BindError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address.clone()),
        _ => BindError::Io { address: address.clone(), source },
    };
    match address {
        Address::Tcp(at) => {
            let socket = TcpListener::bind(at).map_err(failed)?;
            let address = Address::Tcp(socket.local_addr().map_err(failed)?);
            Ok((socket.into(), Endpoint { address, file: None }))
        }
        Address::Unix(path) => {
            // Held until the socket listens, so that of two servers starting at once none removes the other's socket.
            let _lock = lock_directory(path).map_err(failed)?;
            remove_stale(path)?;
            let socket = UnixListener::bind(path).map_err(failed)?;
            let file = Some(SocketFile::of(path).map_err(failed)?);
            Ok((socket.into(), Endpoint { address: address.clone(), file }))
        }
    }
}

impl Endpoint {
    /// Where it listens, with the port that was taken.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The URI clients can be given, for the export of this name.
    pub fn uri(&self, export: &str) -> String {
        let export = percent_encoded(export);
        match &self.address {
            Address::Tcp(at) => format!("nbd://{at}/{export}"),
            Address::Unix(path) => {
                format!("nbd+unix:///{export}?socket={}", percent_encoded(&path.to_string_lossy()))
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Some(ours) = &self.file else { return };
        // A new server may have taken the path already; then the file is not ours to remove.
        if SocketFile::of(&ours.path).is_ok_and(|now| (now.device, now.inode) == (ours.device, ours.inode)) {
            let _ = fs::remove_file(&ours.path);
        }
    }
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let found = fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }
}

impl Address {
    /// A path (anything with a slash, or after `unix:`), or `host:port` or an IP address, the port being 10809 if not given.
    pub fn parse(text: &str) -> Option<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (!path.is_empty()).then(|| Address::Unix(path.into()));
        }
        if text.contains('/') {
            return Some(Address::Unix(text.into()));
        }
        let text = text.strip_prefix("tcp:").unwrap_or(text);
        let ip = || text.parse().ok().map(|ip| SocketAddr::new(ip, NBD_PORT));
        text.parse().ok().or_else(ip).map(Address::Tcp)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(at) => at.fmt(f),
        }
    }
}

fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let address = || Address::Unix(path.to_owned());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(BindError::Io { address: address(), source }),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| BindError::Io { address: address(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Answered, or too busy to answer, or not ours to ask: somebody's.
        Ok(_) | Err(_) => Err(BindError::InUse(address())),
    }
}

/// Everything but what URIs allow in a path and in a query is written as %XX.
fn percent_encoded(text: &str) -> String {
    use fmt::Write;
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<(OwnedFd, Endpoint), BindError> {
        listen(&Address::Unix(path.to_owned()))
    }

    fn local() -> (OwnedFd, Endpoint) {
        listen(&Address::parse("127.0.0.1:0").unwrap()).unwrap()
    }

    #[test]
    fn addresses() {
        let tcp = |text: &str| Some(Address::Tcp(text.parse().unwrap()));
        let unix = |text: &str| Some(Address::Unix(text.into()));
        assert_eq!(Address::parse("127.0.0.1:5000"), tcp("127.0.0.1:5000"));
        assert_eq!(Address::parse("tcp:127.0.0.1"), tcp("127.0.0.1:10809"));
        assert_eq!(Address::parse("[::1]:7"), tcp("[::1]:7"));
        assert_eq!(Address::parse("::1"), tcp("[::1]:10809"));
        assert_eq!(Address::parse("/run/md0.sock"), unix("/run/md0.sock"));
        assert_eq!(Address::parse("./md0"), unix("./md0"));
        assert_eq!(Address::parse("unix:md0.sock"), unix("md0.sock"));
        assert_eq!(Address::parse("unix:"), None);
        assert_eq!(Address::parse("md0"), None);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_file_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("md0");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the file of a server that died");
        let listener = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_in_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("md0");
        let _first = bind(&path).unwrap();
        let error = bind(&path).unwrap_err();
        assert!(matches!(error, BindError::InUse(_)));
        assert!(error.to_string().contains("another server"));
        UnixStream::connect(&path).unwrap();

        let (_first, endpoint) = local();
        assert!(matches!(listen(endpoint.address()), Err(BindError::InUse(_))));
    }

    #[test]
    fn something_else_in_the_socket_s_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let missing = dir.path().join("no/such/directory");
        assert!(matches!(bind(&missing), Err(BindError::Io { .. })));
    }

    #[test]
    fn a_file_that_took_our_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("md0");
        let ours = bind(&path).unwrap();
        // The old inode lives on under another name, so its number is not given to the new file.
        fs::rename(&path, dir.path().join("old")).unwrap();
        let theirs = bind(&path).unwrap();
        drop(ours);
        UnixStream::connect(&path).unwrap();
        drop(theirs);
    }

    #[test]
    fn uris() {
        let (_socket, listener) = local();
        let Address::Tcp(at) = listener.address() else { panic!("a TCP address") };
        assert_eq!(listener.uri("md0"), format!("nbd://127.0.0.1:{}/md0", at.port()));
        let dir = tempfile::tempdir().unwrap();
        let (_socket, listener) = bind(&dir.path().join("a b")).unwrap();
        assert!(listener.uri("").ends_with("/a%20b") && listener.uri("").starts_with("nbd+unix:///?socket=/"));
    }
}
