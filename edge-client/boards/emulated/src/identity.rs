//! Identity of an emulated device: its provisioning record, in a host file that takes the place of a real
//! board's flash page.

use fedspan_client::secure::{PROVISION_MAX, Provision};
use fedspan_client::session::Protection;
use semihosting::fs::File;
use semihosting::io::Read as _;
use semihosting::{eprintln, io};

use crate::fault;
use crate::settings::{Identity, Name};

/// Returns the device's number and protection. Prints a warning if the device has no key; exits if the record
/// is unusable.
#[must_use]
pub fn identify(identity: &Identity) -> (u64, Protection) {
    match identity {
        Identity::Provision(name) => {
            let unusable = |problem: &dyn core::fmt::Display| -> ! {
                let name = name.as_c_str().to_str().unwrap_or("?");
                fault::exit(fault::WRONG, &format_args!("provision={name}: {problem}"))
            };
            let (page, n) = read_file(name).unwrap_or_else(|_| unusable(&"the file cannot be read"));
            let record = Provision::read(page.get(..n).unwrap_or_default());
            let Provision { device, key, noise } = record.unwrap_or_else(|problem| unusable(&problem));
            if noise.is_some() {
                unusable(&"the record demands noise, which this firmware does not add");
            }
            (device, Protection::Key(key))
        }
        Identity::Plaintext(device) => {
            eprintln!(
                "device {device}: PLAINTEXT, for the bench: anyone on the link can read and change messages"
            );
            (*device, Protection::Plaintext)
        }
    }
}

/// Reads the start of a file, and returns it with the number of bytes read.
fn read_file(name: &Name) -> io::Result<([u8; PROVISION_MAX], usize)> {
    let mut file = File::open(name.as_c_str())?;
    let (mut page, mut length) = ([0; PROVISION_MAX], 0);
    while let Some(free) = page.get_mut(length..).filter(|free| !free.is_empty()) {
        match file.read(free)? {
            0 => break,
            n => length += n,
        }
    }
    Ok((page, length))
}
