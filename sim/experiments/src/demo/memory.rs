//! Computation of the RAM that the demo's client needs on a device.

use fedspan_client::features::{FEATURES, WindowFeatures};
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Recording, Session, Workspace};
use rand_chacha::ChaCha8Rng;

use fedspan_sim_core::data::watch::{EXERCISES, PROGRAMME_MAX};

/// Largest width of the representation among the recorded hyperparameters.
const WIDTH: usize = 24;
/// Number of bytes that a link driver reads at once.
const READ: usize = 64;

/// Sizes in bytes for a model with `C` outputs: the model, the session without its model, the link's buffers,
/// and the feature extractor.
fn sizes<const C: usize>() -> [usize; 4] {
    type Whole<const C: usize> =
        Session<Linear<Workspace<FEATURES, WIDTH, C>>, Recording<'static>, NoStore, ChaCha8Rng>;
    let config = Config::new(0);
    let model = size_of::<Workspace<FEATURES, WIDTH, C>>();
    let link = usize::from(config.frame_limit) + config.transmit_capacity() + READ;
    [model, size_of::<Whole<C>>() - model, link, size_of::<WindowFeatures>()]
}

/// Note of the report that lists the sizes and their sum.
#[must_use]
pub fn note() -> String {
    let [model, session, link, extractor] = sizes::<EXERCISES>();
    let total = model + session + link + extractor;
    let programmes: usize = sizes::<PROGRAMME_MAX>().iter().sum();
    format!(
        "RAM of the same client on a device at the widest choice: {total} bytes = model {model} ({FEATURES} features, width \
         {WIDTH}, {EXERCISES} outputs: all that training needs) + session {session} (with its random \
         generator; as compiled for this machine) + link buffers {link} (frames of 256 bytes) + window features \
         {extractor} (one window as it comes in); with the {PROGRAMME_MAX} outputs of a programme {programmes}. \
         The stack is not included, nor are samples: they may stay in flash."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_every_part_of_the_sum() {
        let note = note();
        let parts = sizes::<EXERCISES>();
        let names = ["model", "session", "link buffers", "window features"];
        for (name, bytes) in names.into_iter().zip(parts) {
            assert!(note.contains(&format!("{name} {bytes} (")), "{name} {bytes}: {note}");
        }
        assert!(note.contains(&format!("{} bytes = ", parts.iter().sum::<usize>())), "{note}");
        assert!(note.contains("stack is not included"), "{note}");
    }
}
