//! The NBD front end: an array served to any NBD client, over a Unix socket or TCP.
//!
//! - [`codec`] is the protocol as a state machine without I/O: bytes in, commands and reply bytes out.
//! - [`NbdService`] joins it to the runtime: commands become requests to the array, replies leave in the order they end.
//! - [`listen`] opens the socket, with care for sockets that a former server left behind.
//! - [`Export`] is what clients see of the array: name, size, block sizes, abilities.
//!
//! The protocol is the fixed newstyle one of the [NBD specification], with structured replies, `base:allocation` block
//! status, multiple connections, FUA, flush, trim and write-zeroes.
//!
//! [NBD specification]: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod codec;
mod export;
mod server;

pub use export::{BlockSizes, Export, ExportError};
pub use server::{Address, BindError, Endpoint, NbdService, listen};
