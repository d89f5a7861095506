//! What keeps stored updates from whoever reads the disk later: they are encrypted with a key of their round's own, in a small file of
//! its own, which is overwritten and removed when the round is over. A database leaves what it has deleted in its file for a while,
//! and backups keep it for ever; without the key it is noise. Against somebody who searches the disk itself for what was
//! overwritten it protects nothing: file systems and flash keep copies.
//!
//! A stored update is a nonce of 24 bytes and what XChaCha20-Poly1305 makes of its record, under (round, stage, device) as associated
//! data: in another row it is nobody's.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use fedspan_protocol::message::RoundId;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::error::Fault;
use crate::keys::Entropy;
use fedspan_engine::DeviceId;

/// Where the key of the open round lies. What a method has done is durable when it returns.
pub trait KeyPlace: Send {
    /// What lies there.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self) -> std::io::Result<Option<Zeroizing<Vec<u8>>>>;

    /// Puts a key where none is: all of it or nothing.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, key: &[u8]) -> std::io::Result<()>;

    /// Makes durable what lies there: a write that has failed may have put it there.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self) -> std::io::Result<()>;

    /// Overwrites and removes what lies there, if anything does, and what was left of a key that was not finished.
    ///
    /// # Errors
    /// What the system says; what lies there may be there still, or be overwritten.
    fn erase(&self) -> std::io::Result<()>;
}

const MAGIC: &[u8; 8] = b"FSPLRND1";
const KEY: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;
const SUM: usize = 8;
const LENGTH: usize = MAGIC.len() + ID + KEY + SUM;
/// Bytes of a round's identity.
const ID: usize = 6;

/// The key of the open round, and where it lies.
pub(super) struct Sealer {
    place: Box<dyn KeyPlace>,
    entropy: Box<dyn Entropy>,
    /// The key that lies there, if that has been looked up.
    current: Option<(RoundId, XChaCha20Poly1305)>,
}

impl Sealer {
    pub(super) fn new(place: Box<dyn KeyPlace>, entropy: Box<dyn Entropy>) -> Self {
        Self { place, entropy, current: None }
    }

    /// Makes sure that there is a key for what `round` counts, and that it is durable.
    pub(super) fn begin(&mut self, round: RoundId) -> Result<(), Fault> {
        if self.current.as_ref().is_some_and(|(of, _)| *of == round) {
            return Ok(());
        }
        self.current = match Self::look(self.place.as_ref())? {
            Some((of, cipher)) if of == round => {
                self.place.sync().map_err(Fault::KeyFile)?;
                Some((of, cipher))
            }
            _ => {
                self.place.erase().map_err(Fault::KeyFile)?;
                let mut key = Zeroizing::new([0; KEY]);
                self.entropy.fill(key.as_mut_slice()).map_err(|_| Fault::NoEntropy)?;
                self.place.write(&encode(round, &key)).map_err(Fault::KeyFile)?;
                Some((round, XChaCha20Poly1305::new((&*key).into())))
            }
        };
        Ok(())
    }

    /// The round is over: nobody reads its updates any more.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        self.current = None;
        self.place.erase().map_err(Fault::KeyFile)
    }

    /// Encrypts an update of the round that [`Self::begin`] has begun.
    pub(super) fn seal(&mut self, round: RoundId, device: DeviceId, update: &[u8]) -> Result<Vec<u8>, Fault> {
        let (_, cipher) = self.current.as_ref().filter(|(of, _)| *of == round).ok_or(Fault::NoEntropy)?;
        let mut nonce = [0; NONCE];
        self.entropy.fill(&mut nonce).map_err(|_| Fault::NoEntropy)?;
        let mut sealed = [nonce.as_slice(), update].concat();
        let long = |_| Fault::Damaged("an update is too long to be encrypted".to_owned());
        let text = sealed.get_mut(NONCE..).unwrap_or_default();
        let tag =
            cipher.encrypt_inout_detached(&XNonce::from(nonce), &associated(round, device), text.into());
        sealed.extend_from_slice(&tag.map_err(long)?);
        Ok(sealed)
    }

    /// What opens the updates of a round.
    pub(super) fn opener(&self, round: RoundId) -> Result<Opener, Fault> {
        match Self::look(self.place.as_ref())? {
            Some((of, cipher)) if of == round => Ok(Opener { round, cipher }),
            Some((RoundId { round: number, stage }, _)) => Err(Fault::Key(format!(
                "it is the key of round {number}, stage {stage}, and updates of round {}, stage {} are stored",
                round.round, round.stage
            ))),
            None => Err(Fault::Key(format!(
                "it is missing or damaged, and updates of round {}, stage {} are stored that nothing else opens",
                round.round, round.stage
            ))),
        }
    }

    fn look(place: &dyn KeyPlace) -> Result<Option<(RoundId, XChaCha20Poly1305)>, Fault> {
        Ok(place.read().map_err(Fault::KeyFile)?.as_deref().and_then(|bytes| decode(bytes)))
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

/// What opens the updates of one round.
pub(super) struct Opener {
    round: RoundId,
    cipher: XChaCha20Poly1305,
}

impl Opener {
    pub(super) fn open(&self, device: DeviceId, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Fault> {
        let opened = sealed.split_first_chunk::<NONCE>().and_then(|(nonce, sealed)| {
            let (text, tag) = sealed.split_last_chunk::<TAG>()?;
            let mut text = Zeroizing::new(text.to_vec());
            let aad = associated(self.round, device);
            let nonce = XNonce::from(*nonce);
            self.cipher
                .decrypt_inout_detached(&nonce, &aad, text.as_mut_slice().into(), &Tag::from(*tag))
                .ok()?;
            Some(text)
        });
        let what = || Fault::Damaged(format!("the update of device {device} does not open under round.key"));
        opened.ok_or_else(what)
    }
}

fn identity(round: RoundId) -> [u8; ID] {
    let ([a, b, c, d], [e, f]) = (round.round.to_le_bytes(), round.stage.to_le_bytes());
    [a, b, c, d, e, f]
}

fn associated(round: RoundId, device: DeviceId) -> Vec<u8> {
    [identity(round).as_slice(), &device.to_le_bytes()].concat()
}

fn encode(round: RoundId, key: &[u8; KEY]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(LENGTH));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&identity(round));
    bytes.extend_from_slice(key);
    let sum = Sha256::digest(bytes.as_slice());
    bytes.extend(sum.iter().take(SUM));
    bytes
}

/// The round and its key; `None` if these bytes are not all of one.
fn decode(bytes: &[u8]) -> Option<(RoundId, XChaCha20Poly1305)> {
    let (text, sum) = bytes.split_last_chunk::<SUM>()?;
    let (magic, rest) = text.split_first_chunk::<{ MAGIC.len() }>()?;
    let ([a, b, c, d, e, f], key) = rest.split_first_chunk::<ID>()?;
    let key: &[u8; KEY] = key.try_into().ok()?;
    if magic != MAGIC || !Sha256::digest(text).iter().take(SUM).eq(sum) {
        return None;
    }
    let (round, stage) = (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]));
    Some((RoundId { round, stage }, XChaCha20Poly1305::new(key.into())))
}
