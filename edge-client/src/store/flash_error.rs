//! Error of a range of flash that a store cannot use.

/// Reason why a range of flash cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "defmt", target_os = "none"), derive(defmt::Format))]
#[non_exhaustive]
pub enum FlashError {
    /// A bound of the range is not a multiple of the erase size.
    NotAtPage {
        /// Address of the bound.
        address: u32,
        /// Erase size in bytes.
        page: usize,
    },
    /// The range has fewer than two pages, or extends beyond the flash.
    Range {
        /// Length of the range in bytes.
        bytes: u32,
        /// Smallest usable length in bytes.
        needed: usize,
    },
    /// The flash cannot hold records: its pages are too small or its words too large.
    Geometry {
        /// Erase size in bytes.
        page: usize,
        /// Write size in bytes.
        word: usize,
    },
}

impl core::fmt::Display for FlashError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NotAtPage { address, page } => {
                write!(f, "{address:#x} is not a multiple of the erase size, {page} bytes")
            }
            Self::Range { bytes, needed } => {
                write!(
                    f,
                    "the range of {bytes} bytes is too short or extends beyond the flash; at least {needed} bytes inside it are needed"
                )
            }
            Self::Geometry { page, word } => {
                write!(f, "flash with pages of {page} and words of {word} bytes cannot hold records")
            }
        }
    }
}

impl core::error::Error for FlashError {}
