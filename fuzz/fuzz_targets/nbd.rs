//! NBD sessions: whatever a client sends, nothing panics, messages and replies stay small, and commands keep to the export.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use raidus_nbd::codec::{Command, ErrorCode, MESSAGE_MAX, Need, Op, Session};
use raidus_nbd::{BlockSizes, Export};

const SIZE: u64 = 1 << 40;

fuzz_target!(|data: &[u8]| {
    let Some((&setup, mut bytes)) = data.split_first() else { return };
    let block = if setup & 1 == 0 { 512 } else { 4096 };
    let export = Export::new("md0", SIZE, BlockSizes::for_logical_block(block)).expect("a valid export");
    let export = export.read_only(setup & 2 != 0).fast_zero(setup & 4 != 0);
    let mut out = Vec::new();
    let mut session = Session::new(Arc::new(export), &mut out);
    let mut under_way: Vec<Command> = Vec::new();
    loop {
        out.clear();
        match session.need() {
            Need::Message(n) => {
                assert!((1..=MESSAGE_MAX).contains(&n));
                let Some((message, rest)) = bytes.split_at_checked(n) else { break };
                bytes = rest;
                match session.message(message, &mut out) {
                    Ok(command) => under_way.extend(command.inspect(|c| check(c, block, setup & 2 != 0))),
                    Err(_) => assert_eq!(session.need(), Need::Close),
                }
            }
            Need::Payload(n) | Need::Skip(n) => {
                assert!(n > 0);
                // Payload comes in whatever pieces the socket gives; here its content does not matter, so it is not in the input.
                session.consumed(n.min(u32::from(setup) << 20 | 1 << 16), &mut out);
            }
            Need::Close => break,
        }
        assert!(out.len() <= 8 * MESSAGE_MAX);
    }
    for command in under_way {
        out.clear();
        let result = if command.cookie & 1 == 0 { Ok(()) } else { Err(ErrorCode::Io) };
        session.reply(&command, result, &mut out);
        assert!((16..=256).contains(&out.len()));
    }
});

fn check(command: &Command, block: u32, read_only: bool) {
    assert!(command.offset.is_multiple_of(block.into()) && command.len.is_multiple_of(block));
    assert!(command.offset + u64::from(command.len) <= SIZE);
    assert!(command.len > 0 || command.op == Op::Flush);
    assert!(!matches!(command.op, Op::Read | Op::Write { .. }) || command.len <= BlockSizes::MAX_PAYLOAD);
    assert!(!read_only || command.op == Op::Read);
}
