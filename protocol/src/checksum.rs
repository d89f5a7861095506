//! CRC-32C (Castagnoli): in 64 bytes of flash for a device, or with the feature `fast-checksum` sixteen bytes at
//! a time from 16 KiB of tables, for a host.

pub use implementation::Digest;

#[cfg(feature = "fast-checksum")]
mod implementation {
    use crc::{CRC_32_ISCSI, Crc, Table};

    static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

    /// A checksum under way.
    pub struct Digest(crc::Digest<'static, u32, Table<16>>);

    impl Digest {
        pub fn new() -> Self {
            Self(CRC32C.digest())
        }

        pub fn update(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        pub fn finish(self) -> u32 {
            self.0.finalize()
        }
    }
}

#[cfg(not(feature = "fast-checksum"))]
mod implementation {
    use crc::CRC_32_ISCSI;

    /// What four bits at the lower end add to the others once they are shifted out.
    static TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut bits = 1;
        while bits < 16 {
            let mut value = bits;
            let mut shifts = 0;
            while shifts < 4 {
                let carry = value & 1;
                value >>= 1;
                if carry == 1 {
                    value ^= CRC_32_ISCSI.poly.reverse_bits();
                }
                shifts += 1;
            }
            table[bits as usize] = value;
            bits += 1;
        }
        table
    };

    /// A checksum under way.
    pub struct Digest(u32);

    impl Digest {
        pub fn new() -> Self {
            Self(CRC_32_ISCSI.init)
        }

        pub fn update(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |crc, byte| shift(shift(crc ^ u32::from(*byte))));
        }

        pub fn finish(self) -> u32 {
            self.0 ^ CRC_32_ISCSI.xorout
        }
    }

    /// Takes four bits in.
    fn shift(crc: u32) -> u32 {
        (crc >> 4) ^ TABLE[crc as usize % 16]
    }
}
