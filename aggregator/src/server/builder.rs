//! Builder of a server, for programs that replace the configured algorithm, participation policy or
//! aggregation rule.

use fedspan_connections::reserve_descriptors;
use fedspan_engine::CustomParts;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::algorithm::Algorithm;
use fedspan_engine::participation::Participation;
use getrandom::SysRng;

use super::control::Control;
use super::listener;
use super::udp::UdpListener;
use super::{Listener, Protection, ServeError, Server, open_store, slot_limits};
use crate::config::{Fleet, Security};
use crate::keys::{Entropy, KeyError};

/// Number of open files besides the connections: the store, the journal, logs, and watching clients.
const OTHER_FILES: usize = 128;

/// Builder of a [`Server`], created by [`Server::builder`]. The defaults are those of the program
/// `fedspan-aggregator`: the algorithm, participation policy and aggregation rule of the configuration, the
/// operating system's source of randomness, and a new campaign number for every call.
#[must_use]
pub struct ServerBuilder {
    fleet: Fleet,
    custom: CustomParts,
    protection: Option<Protection>,
    campaign: Option<u64>,
    entropy: BoxedEntropy,
}

/// Source of randomness behind a trait object.
struct BoxedEntropy(Box<dyn Entropy>);

impl Entropy for BoxedEntropy {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        self.0.fill(bytes)
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { fleet, custom, protection, campaign, entropy: _ } = self;
        f.debug_struct("ServerBuilder")
            .field("fleet", fleet)
            .field("custom", custom)
            .field("protection", protection)
            .field("campaign", campaign)
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Creates a builder with the defaults for a configuration.
    pub(super) fn new(fleet: Fleet) -> Self {
        Self {
            fleet,
            custom: CustomParts::default(),
            protection: None,
            campaign: None,
            entropy: BoxedEntropy(Box::new(SysRng)),
        }
    }

    /// Replaces the algorithm; see [`CustomParts::with_algorithm`]. The configured algorithm still determines
    /// the model that devices announce, the number of training rounds, and the fitting of final heads.
    pub fn algorithm(self, name: impl Into<String>, algorithm: Box<dyn Algorithm>) -> Self {
        Self { custom: self.custom.with_algorithm(name, algorithm), ..self }
    }

    /// Replaces the participation policy; see [`CustomParts::with_participation`].
    pub fn participation(self, name: impl Into<String>, participation: Box<dyn Participation>) -> Self {
        Self { custom: self.custom.with_participation(name, participation), ..self }
    }

    /// Replaces the aggregation rule by one of FedSpan's rules or by a [`Rule::custom`]. A custom algorithm
    /// combines updates itself, so a server with both a custom algorithm and a rule is refused.
    pub fn rule(self, rule: Rule) -> Self {
        Self { custom: self.custom.with_rule(rule), ..self }
    }

    /// Adds a setting of a custom algorithm or policy, such as a momentum, to the fingerprint: a stored
    /// campaign with another value is not resumed.
    pub fn setting(self, key: impl Into<String>, value: f64) -> Self {
        Self { custom: self.custom.with_setting(key, value), ..self }
    }

    /// Sets the protection of frames. Optional for a configuration with `plaintext`. A configuration with
    /// keys requires [`Protection::Keys`].
    pub fn protection(self, protection: Protection) -> Self {
        Self { protection: Some(protection), ..self }
    }

    /// Sets the number of a new campaign. The number must differ from those of earlier campaigns with the
    /// same configuration, because devices may remember the round ids of those campaigns. A resumed campaign
    /// keeps its number.
    pub fn campaign(self, number: u64) -> Self {
        Self { campaign: Some(number), ..self }
    }

    /// Sets the source of randomness for the keys of stored updates. The default is the operating system's.
    pub fn entropy(self, entropy: impl Entropy + 'static) -> Self {
        Self { entropy: BoxedEntropy(Box::new(entropy)), ..self }
    }

    /// Binds the configured address, and resumes the campaign in the state directory or begins a new one.
    ///
    /// # Errors
    /// [`ServeError`] if a custom part does not fit the configuration, the listener cannot be bound, or the
    /// campaign cannot be begun or resumed.
    pub async fn bind(self) -> Result<Server, ServeError> {
        // The store is opened first, so that an error of the state directory is reported before an address in
        // use.
        let (parts, store) = self.open()?;
        let address = &parts.fleet.tcp;
        let limits = &parts.fleet.limits;
        let waiting = limits.connections.saturating_add(limits.unauthenticated);
        if let Err(shortage) = reserve_descriptors(slot_limits(limits), OTHER_FILES) {
            tracing::warn!(%shortage, "limit on open files");
        }
        let listener = listener::bind(address, waiting)
            .await
            .map_err(|error| ServeError::Listen { address: address.clone(), error })?;
        let udp = match &parts.fleet.udp {
            Some(address) => Some(
                UdpListener::bind(address, parts.fleet.packet)
                    .await
                    .map_err(|error| ServeError::Listen { address: address.clone(), error })?,
            ),
            None => None,
        };
        Server::with_store(parts, listener, udp, store)
    }

    /// Creates a server as [`Self::bind`] does, with an existing listener instead of the configured addresses. Packets over UDP
    /// (`[listen] udp`) are not served.
    ///
    /// # Errors
    /// [`ServeError`] as for [`Self::bind`].
    pub fn over<L: Listener>(self, listener: L) -> Result<Server<L>, ServeError> {
        let (parts, store) = self.open()?;
        if let Some(address) = &parts.fleet.udp {
            tracing::warn!(address, "[listen] udp is ignored, because the server was given its listener");
        }
        Server::with_store(parts, listener, None, store)
    }

    /// Checks the custom parts and the protection, and opens the store.
    fn open(self) -> Result<(ServerParts, crate::store::Store), ServeError> {
        let Self { fleet, custom, protection, campaign, entropy } = self;
        let fleet = match custom.rule() {
            Some(rule) => fleet.with_rule(rule)?,
            None => fleet,
        };
        let protection = match (protection, &fleet.security) {
            (Some(protection), _) => protection,
            (None, Security::Plaintext) => Protection::Plaintext,
            (None, Security::Keys { store, .. }) => return Err(ServeError::NoKeys { store: store.clone() }),
        };
        let campaign = campaign.unwrap_or_else(campaign_number);
        let store = open_store(&fleet, entropy)?;
        let control = Control::bind(&fleet.state);
        Ok((ServerParts { fleet, custom, protection, campaign, control }, store))
    }
}

/// Parts of a server except the listener and the store.
pub(super) struct ServerParts {
    pub(super) fleet: Fleet,
    pub(super) custom: CustomParts,
    pub(super) protection: Protection,
    pub(super) campaign: u64,
    pub(super) control: Option<Control>,
}

/// Returns a new campaign number, which need not be secret.
fn campaign_number() -> u64 {
    let unix_time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = u64::from(unix_time.subsec_nanos());
    unix_time.as_secs() << 30 ^ nanoseconds ^ u64::from(std::process::id()) << 48
}
