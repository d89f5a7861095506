//! Implementations of the CRC-32C (Castagnoli): with a nibble table of 64 bytes for devices, and, with the
//! feature `wide`, with the CPU instructions of a host.

#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
pub use small::Digest;
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub use wide::Digest;

#[cfg(all(feature = "wide", not(target_os = "none")))]
mod wide {
    /// Running CRC-32C, computed with CPU instructions.
    #[derive(Debug)]
    pub struct Digest(u32);

    impl Default for Digest {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Digest {
        /// Creates the checksum of an empty string of bytes.
        #[must_use]
        pub fn new() -> Self {
            Self(0)
        }

        /// Appends bytes.
        pub fn update(&mut self, bytes: &[u8]) {
            self.0 = crc32c::crc32c_append(self.0, bytes);
        }

        /// Returns the checksum of all appended bytes.
        #[must_use]
        pub fn finish(self) -> u32 {
            self.0
        }
    }
}

#[cfg(any(test, not(all(feature = "wide", not(target_os = "none")))))]
mod small {
    use crc::CRC_32_ISCSI;

    /// Contribution of the four lowest bits to the remaining bits after these four are shifted out.
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

    /// Running CRC-32C, computed with a nibble table.
    #[derive(Debug)]
    pub struct Digest(u32);

    impl Default for Digest {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Digest {
        /// Creates the checksum of an empty string of bytes.
        #[must_use]
        pub fn new() -> Self {
            Self(CRC_32_ISCSI.init)
        }

        /// Appends bytes.
        pub fn update(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |crc, byte| shift(shift(crc ^ u32::from(*byte))));
        }

        /// Returns the checksum of all appended bytes.
        #[must_use]
        pub fn finish(self) -> u32 {
            self.0 ^ CRC_32_ISCSI.xorout
        }
    }

    /// Shifts out four bits.
    fn shift(crc: u32) -> u32 {
        (crc >> 4) ^ TABLE[crc as usize % 16]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Digest, small};

    proptest! {
        /// Tests that the compiled implementation agrees with the device's, for any split of the bytes.
        #[test]
        fn host_and_device_checksums_agree(bytes in proptest::collection::vec(any::<u8>(), 0..5000), split in any::<usize>()) {
            let (first, second) = bytes.split_at(split % (bytes.len() + 1));
            let mut device = small::Digest::new();
            device.update(&bytes);
            let mut host = Digest::new();
            host.update(first);
            host.update(second);
            prop_assert_eq!(host.finish(), device.finish());
        }
    }
}
