//! Compressed bodies that unpack to some 100 MiB, written by hand: packing them would take longer than all
//! the rest. Unpacked they are the beginning of an event whose line does not end.

/// The beginning of each.
const BEGIN: &[u8] = b"data: {\"x\":\"";

/// 104 bytes.
pub const BROTLI: &[u8] = b"\xcf\xff\xff\x7f\x00\x04\x94\x71\xa4\x6b\x82\x63\x7a\x3d\x61\x18\xe4\xb0\x42\xce\x22\x8b\x71\x67\xb7\xde\xff\xe3\xff\xff\x3f\x00\x12\x00\x71\x58\x00\xba\xf7\xff\xfc\xff\xff\x07\x40\x02\x20\x0e\x0b\x40\xf7\xfe\x9f\xff\xff\xff\x00\x48\x00\xc4\x61\x01\xe8\xde\xff\xf3\xff\xff\x1f\x00\x09\x80\x38\x2c\x00\xdd\xfb\x7f\xfe\xff\xff\x03\x20\x01\x10\x87\x05\xa0\x7b\xff\x9f\xff\xff\x3f\x00\x24\x00\xe2\xb0\x00\x74\xef\x7f\x00";

/// Some 660 KB: one block of RFC 1951 with fixed codes, in which each 13 bits stand for 258 letters.
pub fn gzip() -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(0b110, 3); // The last block; fixed codes (01, low bit first).
    for letter in BEGIN.iter().chain(b"x") {
        bits.put(0x30 + u32::from(*letter), 8);
    }
    for _ in 0..(100 << 20) / 258 {
        bits.put(0b1100_0101, 8); // 258 letters
        bits.put(0, 5); // from one letter back.
    }
    bits.put(0, 7);
    [&b"\x1f\x8b\x08\0\0\0\0\0\0\xff"[..], &bits.bytes, &[0; 9]].concat()
}

/// Some 3 KB: blocks of RFC 8878 that each say one letter 128 Ki times.
pub fn zstd() -> Vec<u8> {
    let header = |kind: usize, size: usize| (kind << 1 | size << 3).to_le_bytes()[..3].to_vec();
    let mut packed = [&b"\x28\xb5\x2f\xfd\x00\x38"[..], &header(0, BEGIN.len()), BEGIN].concat();
    for _ in 0..800 {
        packed.extend(header(1, 128 << 10));
        packed.push(b'x');
    }
    packed
}

/// Codes with their high bit first, packed from the low bit of each byte on.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    fn put(&mut self, code: u32, length: usize) {
        for place in (0..length).rev() {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = u8::try_from(code >> place & 1).unwrap();
            *self.bytes.last_mut().unwrap() |= bit << (self.used % 8);
            self.used += 1;
        }
    }
}

#[test]
fn they_unpack() {
    use std::io::Read as _;
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&gzip()[..]).take(1 << 20).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked.starts_with(b"data: {\"x\":\"xxx") && unpacked.len() == 1 << 20);
    unpacked.clear();
    brotli::Decompressor::new(BROTLI, 4096).take(1 << 20).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked.starts_with(b"data: {\"x\":\"xxx") && unpacked.len() == 1 << 20);
}
