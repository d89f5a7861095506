//! Export of a state directory for other programs: writes model, rounds, privacy ledger and journal as files.

mod atomic_dir;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use self::atomic_dir::{AtomicDir, refuse_to_overwrite};
use crate::config::Fleet;
use crate::durable_engine::{ResumeError, restore, with_stored_settings};
use crate::journal::{self, CommittedRound};
use crate::store::{CampaignState, OfflineStore, StoreError};
use fedspan_engine::algorithm::HeadPrior;
use fedspan_engine::linalg::{Matrix, from_f32};
use fedspan_engine::privacy::Delta;
use fedspan_engine::privacy::ledger_units::epsilon_of;
use fedspan_engine::{DeviceId, Tensor};

/// Reason why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The state cannot be read or resumed.
    #[error(transparent)]
    State(#[from] ResumeError),
    /// The state directory contains no campaign.
    #[error("{}: no campaign was begun here", path.display())]
    Nothing {
        /// State directory.
        path: PathBuf,
    },
    /// The target exists.
    #[error("{}: already exists; refusing to overwrite it", path.display())]
    Exists {
        /// Path of the target.
        path: PathBuf,
    },
    /// The target cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
}

impl From<StoreError> for ExportError {
    fn from(error: StoreError) -> Self {
        Self::State(error.into())
    }
}

/// Writes the stored campaign to a new directory `to`, which is removed after an error. The directory
/// contains:
///
/// * `representation.npy`: the representation (f64, d x k), except of heads with a learned prior, which act on all features;
/// * `prior-mean.npy` (f64, d x C) and `prior-covariance.npy` (f64, d x d, in units of the variance of the noise): the prior of heads,
///   if the fleet has learned it;
/// * `model.safetensors`: the model with which devices fit their heads, and the scale of their samples (f32);
/// * `scale.npy`, if samples are scaled: the values to subtract and the factors to multiply by (f64, 2 x d);
/// * `rounds.jsonl`, `ledger.json`, `arrivals.jsonl` and `configuration.txt`;
/// * `ridge.json`, if the fleet has chosen a ridge for final heads.
///
/// # Errors
/// [`ExportError::Nothing`] without a campaign, [`ExportError::Exists`] if `to` exists,
/// [`ExportError::State`] if the campaign cannot be read or resumed, [`ExportError::Io`].
pub fn export(fleet: &Fleet, to: &Path) -> Result<(), ExportError> {
    refuse_to_overwrite(to)?;
    let no_campaign = || ExportError::Nothing { path: fleet.state.clone() };
    let snapshot = OfflineStore::open(&fleet.state)?.ok_or_else(no_campaign)?;
    let stored = snapshot.campaign()?.ok_or_else(no_campaign)?;
    let lines = snapshot.journal()?.into_iter().map(|(_, line)| line).collect();
    export_state(fleet, &ExportedState { stored, rounds: snapshot.rounds()?, lines }, to)
}

/// Stored campaign to export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportedState {
    /// Stored campaign, without the updates of the open round.
    pub stored: CampaignState,
    /// Committed rounds, in order.
    pub rounds: Vec<CommittedRound>,
    /// Lines of the journal.
    pub lines: Vec<String>,
}

/// Writes the same directory as [`export`], from a state that was fetched from a running server with
/// [`fetch_export`](crate::server::fetch_export).
///
/// # Errors
/// Same as [`export`].
pub fn export_state(fleet: &Fleet, state: &ExportedState, to: &Path) -> Result<(), ExportError> {
    let ExportedState { stored, rounds, lines } = state;
    refuse_to_overwrite(to)?;
    let fleet = with_stored_settings(fleet, &stored.configuration)?.fleet;
    let mut engine = fleet.engine();
    restore(&mut engine, stored, &fleet.fingerprint())?;
    let delta = fleet.privacy.map_or(Delta::DEFAULT, |minimum| minimum.delta);
    let ledger: BTreeMap<DeviceId, serde_json::Value> = stored
        .accounts
        .iter()
        .map(|(device, account)| {
            let entry = serde_json::json!({
                "release": account.release, "budget": account.budget, "spent": account.spent,
                "epsilon": epsilon_of(account.spent, delta),
            });
            (*device, entry)
        })
        .collect();
    let ledger = serde_json::json!({ "delta": delta.get(), "devices": ledger });
    let round = stored.last_round().map_or(0, |id| id.round);
    let chosen = engine.chosen_ridge();
    let mut metadata = vec![("campaign", stored.campaign.to_string()), ("exchange", round.to_string())];
    metadata.extend(chosen.as_ref().map(|chosen| ("ridge", chosen.ridge.to_string())));
    let ridge = chosen.map(|chosen| {
        ("ridge.json", Content::Bytes(format!("{}\n", serde_json::json!(chosen)).into_bytes()))
    });
    let rounds = rounds_to_json(rounds);
    let scale = engine.scale().map(|scale| scale.tensor());
    let mut tensors = engine.tensors();
    tensors.extend(scale.clone());
    let matrix = |name, matrix: &Matrix| (name, Content::Bytes(encode_npy(matrix)));
    let layer_names: Vec<String> = (0..engine.tensors().len()).map(|n| format!("layer-{n}.npy")).collect();
    let linear = match (fleet.algorithm.learned_prior(), engine.head_prior()) {
        (None, _) => vec![matrix("representation.npy", engine.representation())],
        (Some(_), None) => Vec::new(),
        (Some(_), Some(HeadPrior { mean, covariance, .. })) => {
            let mut prior =
                vec![matrix("prior-mean.npy", &mean), matrix("prior-covariance.npy", &covariance)];
            // The layers of a network before the last one, for which the prior is.
            if fleet.model.network.is_some() {
                for (name, layer) in layer_names.iter().zip(engine.tensors()) {
                    prior.push(matrix(name, &from_f32(layer.rows.into(), layer.cols.into(), &layer.values)));
                }
            }
            prior
        }
    };
    let mut files = vec![
        ("model.safetensors", Content::Bytes(encode_safetensors(&tensors, &metadata))),
        ("rounds.jsonl", Content::Lines(&rounds)),
        ("ledger.json", Content::Bytes(format!("{ledger}\n").into_bytes())),
        (journal::FILE, Content::Lines(lines)),
        ("configuration.txt", Content::Bytes(stored.configuration.clone().into_bytes())),
    ];
    if let Some(scale) = scale {
        files.push((
            "scale.npy",
            Content::Bytes(encode_npy(&from_f32(scale.rows.into(), scale.cols.into(), &scale.values))),
        ));
    }
    let directory = AtomicDir::begin(to)?;
    for (name, content) in files.into_iter().chain(linear).chain(ridge) {
        directory.write_file(name, |file| content.write(file))?;
    }
    directory.commit()
}

/// Content of an exported file. Lines are written one by one, because a campaign may have many.
enum Content<'a> {
    Bytes(Vec<u8>),
    Lines(&'a [String]),
}

impl Content<'_> {
    /// Writes the content to a file.
    fn write(&self, file: &File) -> std::io::Result<()> {
        let mut writer = BufWriter::new(file);
        match self {
            Self::Bytes(bytes) => writer.write_all(bytes)?,
            Self::Lines(lines) => {
                for line in *lines {
                    writer.write_all(line.as_bytes())?;
                    writer.write_all(b"\n")?;
                }
            }
        }
        writer.flush()
    }
}

/// Serialises rounds as JSON, one line each. Serialisation of a round cannot fail.
fn rounds_to_json(rounds: &[CommittedRound]) -> Vec<String> {
    rounds.iter().filter_map(|round| serde_json::to_string(round).ok()).collect()
}

/// Encodes a matrix in the NPY format, version 1.0: a header padded to 64 bytes, and the values row by row.
fn encode_npy(matrix: &Matrix) -> Vec<u8> {
    let (rows, columns) = matrix.shape();
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    /// Magic string, version and header length.
    const PREFIX_LEN: usize = 6 + 2 + 2;
    let padded_len = (PREFIX_LEN + header.len() + 1).next_multiple_of(64) - PREFIX_LEN - 1;
    header.extend(std::iter::repeat_n(' ', padded_len - header.len()));
    header.push('\n');
    let length = u16::try_from(header.len()).unwrap_or(u16::MAX);
    let mut bytes = [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes(), header.as_bytes()].concat();
    bytes.extend(matrix.transpose().iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// Encodes tensors in the safetensors format: the length of a JSON header, the header, the values.
fn encode_safetensors(tensors: &[Tensor], metadata: &[(&str, String)]) -> Vec<u8> {
    let metadata: BTreeMap<&str, &String> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    let mut data = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let begin = data.len();
        data.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": [tensor.rows, tensor.cols], "data_offsets": [begin, data.len()],
        });
        header.insert(format!("{index}.{:?}", tensor.role).to_lowercase(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &data].concat()
}
