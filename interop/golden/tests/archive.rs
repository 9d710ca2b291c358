//! The archive is whole and says what it should.

use raidus_golden::{case, cases, write_sparse};

#[test]
fn every_array_has_its_images_and_texts() {
    assert!(!cases().is_empty());
    for case in cases() {
        assert_eq!(case.name, case.manifest.name);
        assert!(case.disks() > 0);
        for file in ["examine.txt", "bitmap.txt", "badblocks.txt", "detail.txt", "mdstat.txt", "sysfs.txt"] {
            assert!(!case.text(file).is_empty(), "{}: {file}", case.name);
        }
        for disk in 0..case.disks() {
            assert!(case.has(&format!("disk{disk}.img.zst")), "{}: disk{disk}", case.name);
            case.text_of_disk("examine.txt", disk);
        }
    }
}

#[test]
fn an_image_file_has_the_bytes_of_the_image() {
    let case = case("spare-raid5-1.0");
    let image = case.image(3);
    assert_eq!(image.len() as u64, case.manifest.members[3].bytes);
    let path = std::env::temp_dir().join(format!("raidus-golden-{}.img", std::process::id()));
    write_sparse(&path, &image).unwrap();
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(written == image);
}

#[test]
fn the_text_of_each_disk_is_its_own() {
    let case = case("raid5-1.2-n3-64k");
    let parts: String = (0..3).map(|n| format!("== disk{n}\n{}", case.text_of_disk("examine.txt", n))).collect();
    assert_eq!(parts, case.text("examine.txt"));
}
