//! Who the device is: from a provisioning record in a file of the host, which plays the page of flash that a real
//! board has for it.

use fedspan_client::secure::{PROVISION_MAX, Provision};
use fedspan_client::session::Protection;
use semihosting::fs::File;
use semihosting::io::Read as _;
use semihosting::{eprintln, io};

use crate::fault;
use crate::settings::{Identity, Name};

/// The device's number and protection; exits where the settings name no record. Without a key it says so.
#[must_use]
pub fn identify(identity: &Identity) -> (u64, Protection) {
    match identity {
        Identity::Provision(name) => {
            let unusable = |problem: &dyn core::fmt::Display| -> ! {
                let name = name.as_c_str().to_str().unwrap_or("?");
                fault::exit(fault::WRONG, &format_args!("provision={name}: {problem}"))
            };
            let (page, n) = read(name).unwrap_or_else(|_| unusable(&"it cannot be read"));
            let record = Provision::read(page.get(..n).unwrap_or_default());
            let Provision { device, key, noise } = record.unwrap_or_else(|problem| unusable(&problem));
            if noise.is_some() {
                unusable(&"it wants noise on what is sent, which this firmware does not add");
            }
            (device, Protection::Key(key))
        }
        Identity::Plaintext(device) => {
            eprintln!(
                "device {device}: PLAINTEXT, for the bench: anybody on the link can read and change what is said"
            );
            (*device, Protection::Plaintext)
        }
    }
}

/// The start of a file, and how much of it there is.
fn read(name: &Name) -> io::Result<([u8; PROVISION_MAX], usize)> {
    let mut file = File::open(name.as_c_str())?;
    let (mut page, mut length) = ([0; PROVISION_MAX], 0);
    while let Some(rest) = page.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            n => length += n,
        }
    }
    Ok((page, length))
}
