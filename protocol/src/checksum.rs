//! CRC-32C (Castagnoli): from 64 bytes of flash on a device, or with the feature `wide` by the instructions that
//! hosts have for it.

#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
pub use small::Digest;
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub use wide::Digest;

/// Floats that are taken at once: as many as are worth a call on a host, and as a device's stack has room for.
pub const FLOATS: usize = if cfg!(all(feature = "wide", not(target_os = "none"))) { 1024 } else { 16 };

#[cfg(all(feature = "wide", not(target_os = "none")))]
mod wide {
    /// A CRC-32C under way.
    #[derive(Debug)]
    pub struct Digest(u32);

    impl Default for Digest {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Digest {
        /// Of nothing yet.
        #[must_use]
        pub fn new() -> Self {
            Self(0)
        }

        /// Takes further bytes.
        pub fn update(&mut self, bytes: &[u8]) {
            self.0 = crc32c::crc32c_append(self.0, bytes);
        }

        /// The checksum of all of them.
        #[must_use]
        pub fn finish(self) -> u32 {
            self.0
        }
    }
}

#[cfg(any(test, not(all(feature = "wide", not(target_os = "none")))))]
mod small {
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

    /// A CRC-32C under way.
    #[derive(Debug)]
    pub struct Digest(u32);

    impl Default for Digest {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Digest {
        /// Of nothing yet.
        #[must_use]
        pub fn new() -> Self {
            Self(CRC_32_ISCSI.init)
        }

        /// Takes further bytes.
        pub fn update(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |crc, byte| shift(shift(crc ^ u32::from(*byte))));
        }

        /// The checksum of all of them.
        #[must_use]
        pub fn finish(self) -> u32 {
            self.0 ^ CRC_32_ISCSI.xorout
        }
    }

    /// Takes four bits in.
    fn shift(crc: u32) -> u32 {
        (crc >> 4) ^ TABLE[crc as usize % 16]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Digest, small};

    proptest! {
        /// Whichever is compiled, and however the bytes are cut.
        #[test]
        fn a_host_and_a_device_agree(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in any::<usize>()) {
            let (first, second) = bytes.split_at(cut % (bytes.len() + 1));
            let mut device = small::Digest::new();
            device.update(&bytes);
            let mut host = Digest::new();
            host.update(first);
            host.update(second);
            prop_assert_eq!(host.finish(), device.finish());
        }
    }
}
