//! The server under other people's clients: libnbd, qemu, fio, nbd-client.

mod common;

use std::fs;
use std::path::Path;

use common::Random;
use common::array::Server;
use common::tools::{run, tool};
use raidus_units::Level;

/// Bytes written by the copying tests: no multiple of anything but the block size.
const LENGTH: usize = (9 << 20) + 512 * 37;

fn noise(path: &Path, len: usize, seed: u64) -> Vec<u8> {
    let mut data = Random(seed).bytes(len);
    // Some zeroes, as real images have them.
    data[len / 4..len / 2].fill(0);
    fs::write(path, &data).unwrap();
    data
}

#[test]
fn nbdinfo_sees_the_export() {
    let server = Server::unix(Level::Raid5, "md0");
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let text = run(&mut nbdinfo, [&server.uri()]);
    let size = server.size();
    for expected in [
        "protocol: newstyle-fixed without TLS, using structured packets".to_owned(),
        format!("export-size: {size}"),
        "is_read_only: false".to_owned(),
        "can_multi_conn: true".to_owned(),
        "can_fua: true".to_owned(),
        "can_flush: true".to_owned(),
        "can_trim: true".to_owned(),
        "can_zero: true".to_owned(),
        "can_df: true".to_owned(),
        "base:allocation".to_owned(),
        "block_size_minimum: 512".to_owned(),
        "block_size_preferred: 4096".to_owned(),
        "block_size_maximum: 33554432".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected:?} is missing in:\n{text}");
    }

    let list = run(&mut tool("nbdinfo", "libnbd-bin").unwrap(), ["--list", &server.uri()]);
    assert!(list.contains("export=\"md0\":"), "{list}");

    let map = run(&mut tool("nbdinfo", "libnbd-bin").unwrap(), ["--map", &server.uri()]);
    let fields: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(fields, ["0", &size.to_string(), "0", "data"]);
}

#[test]
fn nbdinfo_of_another_export_fails_with_a_reason() {
    let server = Server::unix(Level::Raid1, "md0");
    let Some(mut nbdinfo) = tool("nbdinfo", "libnbd-bin") else { return };
    let output = nbdinfo.arg(server.uri_of("md1")).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn nbdcopy_there_and_back() {
    for level in [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let server = Server::unix(level, "md0");
        let Some(mut there) = tool("nbdcopy", "libnbd-bin") else { return };
        let mut back = tool("nbdcopy", "libnbd-bin").unwrap();
        let (source, copy) = (server.file("source"), server.file("copy"));
        let data = noise(&source, LENGTH, 1);
        run(there.args(["--flush", "--connections=4", "--requests=64"]).arg(&source), [server.uri()]);
        run(back.args(["--connections=4", "--requests=64"]).arg(server.uri()), [&copy]);
        let copied = fs::read(&copy).unwrap();
        assert_eq!(copied.len() as u64, server.size());
        assert!(copied[..LENGTH] == data, "{level:?}: the content came back different");
        assert!(copied[LENGTH..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn qemu_img_info_convert_and_compare() {
    let server = Server::unix(Level::Raid5, "md0");
    let package = "qemu-utils";
    let Some(mut info) = tool("qemu-img", package) else { return };
    let text = run(&mut info, ["info", "-f", "raw", &server.uri()]);
    assert!(text.contains(&format!("({} bytes)", server.size())), "{text}");

    let (source, copy) = (server.file("source"), server.file("copy"));
    noise(&source, server.size() as usize, 2);
    let qemu_img = || tool("qemu-img", package).unwrap();
    let (source, copy) = (source.to_str().unwrap(), copy.to_str().unwrap());
    run(&mut qemu_img(), ["convert", "-n", "-f", "raw", "-O", "raw", "-m", "16", "-W", source, &server.uri()]);
    let same = run(&mut qemu_img(), ["compare", "-f", "raw", "-F", "raw", source, &server.uri()]);
    assert!(same.contains("Images are identical"), "{same}");
    run(&mut qemu_img(), ["convert", "-f", "raw", "-O", "raw", &server.uri(), copy]);
    assert!(fs::read(source).unwrap() == fs::read(copy).unwrap());
}

#[test]
fn qemu_io_writes_zeroes_and_discards() {
    for level in [Level::Raid1, Level::Raid5] {
        let server = Server::unix(level, "md0");
        let Some(mut qemu_io) = tool("qemu-io", "qemu-utils") else { return };
        let commands = [
            "write -P 0xa5 0 2M",
            "write -f -P 0x5a 1M 64k",
            "write -z 256k 192k",
            "write -z -u 512k 128k",
            "discard 768k 64k",
            "flush",
            "read -P 0xa5 0 256k",
            "read -P 0 256k 192k",
            "read -P 0xa5 448k 64k",
            "read -P 0 512k 128k",
            "read -P 0 768k 64k",
            "read -P 0x5a 1M 64k",
            "aio_write -P 1 3M 1M",
            "aio_write -P 2 4M 1M",
            "aio_flush",
            "read -P 1 3M 1M",
            "read -P 2 4M 1M",
        ];
        qemu_io.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command]));
        let text = run(&mut qemu_io, [server.uri()]);
        // Its exit status does not tell about patterns.
        assert!(!text.contains("verification failed") && !text.contains("failed"), "{text}");
        assert_eq!(text.matches("read ").count(), 8, "{text}");
    }
}

#[test]
fn qemu_cannot_write_to_a_read_only_export() {
    let server = Server::read_only(Level::Raid1, "md0");
    let Some(mut qemu_io) = tool("qemu-io", "qemu-utils") else { return };
    let output = qemu_io.args(["-f", "raw", "-c", "write 0 4k"]).arg(server.uri()).output().unwrap();
    assert!(!output.status.success());
    run(tool("qemu-io", "qemu-utils").unwrap().args(["-r", "-f", "raw", "-c", "read -P 0 0 4k"]), [server.uri()]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    for level in [Level::Raid5, Level::Raid10] {
        let server = Server::tcp(level, "md0");
        let Some(mut help) = tool("fio", "fio") else { return };
        let engines = run(&mut help, ["--enghelp"]);
        assert!(engines.split_whitespace().any(|engine| engine == "nbd"), "this fio was built without NBD:\n{engines}");
        let text = run(
            tool("fio", "fio").unwrap().args([
                "--name=verify",
                "--ioengine=nbd",
                "--rw=randrw",
                "--bsrange=512-64k",
                "--blockalign=512",
                "--iodepth=64",
                "--size=16m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_backlog=256",
                "--fsync=100",
                "--verify_state_save=0",
                "--randseed=7",
            ]),
            [format!("--uri={}", server.uri())],
        );
        assert!(text.contains("err= 0"), "{text}");
    }
}

#[test]
fn nbd_client_lists_the_export() {
    let server = Server::tcp(Level::Raid1, "my array");
    let Some(mut nbd_client) = tool("nbd-client", "nbd-client") else { return };
    let port = server.port().to_string();
    let text = run(&mut nbd_client, ["-l", "127.0.0.1", &port]);
    assert!(text.contains("my array"), "{text}");
}
