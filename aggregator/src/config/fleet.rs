//! Configuration of the command `serve`: reads and checks `fleet.toml`.

use std::path::PathBuf;
use std::time::Duration;

use fedspan_protocol::datagram::PACKET_MIN;
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{Image, Model};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::limits::{Limits, RoundsSection, read_limits, read_rounds};
use super::security::{self, Security};
use fedspan_engine::admission::least_frame_limit;
use fedspan_engine::aggregate::Rule;
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::algorithm::SecondTensor;
use fedspan_engine::algorithm::network::SharedLayers;
use fedspan_engine::config::GivenKeys;
use fedspan_engine::config::Section;
use fedspan_engine::config::{AlgorithmSection, Init, ModelSection, read_algorithm, read_model};
use fedspan_engine::config::{Problem, Source, Values};
use fedspan_engine::config::{Shape, build_custom_engine, network_shape};
use fedspan_engine::config::{StopSection, check_change, check_stop_of_prior, read_server_stop};
use fedspan_engine::config::{check_aggregation, read_aggregation, rule_advice};
use fedspan_engine::config::{check_frames, check_scale, check_scaled_tensors, read_scale};
use fedspan_engine::config::{check_private_algorithm, check_private_rule, read_privacy_requirement};
use fedspan_engine::participation::Policy;
use fedspan_engine::privacy::PrivacyRequirement;
use fedspan_engine::{CustomNames, CustomParts, DeviceId, Engine, Millis, Settings};

/// Delay before a retry of a round that too few devices could answer, in ms. The delay exists because devices
/// may be switched on before they have samples.
const RETRY_DELAY: u64 = 5_000;

/// Configuration of a device server.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Seed of the initial model and of cohorts.
    pub seed: u64,
    /// State directory; relative paths are relative to the working directory.
    pub state: PathBuf,
    /// Whether a journal is kept.
    pub journal: bool,
    /// Address of the TCP listener.
    pub tcp: String,
    /// Address for packets over UDP; `None` if there is none.
    pub udp: Option<String>,
    /// Longest packet that is sent over UDP, in bytes.
    pub packet: usize,
    /// Whether devices may seal frames with short tags.
    pub short_tags: bool,
    /// Address to which beacons are sent as packets; `None` if none are sent.
    pub beacon: Option<String>,
    /// Time from the first announcement of a round to its beacon.
    pub beacon_delay: Duration,
    /// Paths of serial ports.
    pub serial: Vec<String>,
    /// Speed of the serial ports, in bits per second.
    pub baud: u32,
    /// Authentication of devices.
    pub security: Security,
    /// Number of devices that must have joined before the first round opens.
    pub expected: usize,
    /// Number of the first device, which is in the first group where an algorithm compares groups.
    pub first_device: u64,
    /// Devices that may join; `None` if every device may join.
    pub allowed: Option<Vec<DeviceId>>,
    /// Devices that are not trained on: they join when training has ended, and fit their heads. Ascending.
    pub held_out: Vec<DeviceId>,
    /// Time after which rounds are not sent to a disconnected device until it has joined again.
    pub absence: Duration,
    /// Dimensions of the data, such as the number of features.
    pub shape: Shape,
    /// Scale of the devices' samples.
    pub scale: ScaleSource,
    /// Section `[model]`.
    pub model: ModelSection,
    /// Section `[algorithm]`.
    pub algorithm: AlgorithmSection,
    /// Aggregation rule.
    pub rule: Rule,
    /// Participation policy, from `[participation]`.
    pub participation: Policy,
    /// Weakest privacy guarantee with which a device is admitted; `None` if no guarantee is required.
    pub privacy: Option<PrivacyRequirement>,
    /// Change of the representation in one round below which training ends; `None` to train for all rounds.
    pub stop_change: Option<f64>,
    /// Deadlines of rounds.
    pub rounds: RoundsSection,
    /// Limits on peers.
    pub limits: Limits,
    /// Keys that the file sets. When a stored campaign is resumed, the other keys keep their stored values.
    pub given: GivenKeys,
    /// Names of the custom algorithm and the custom policy that replace `algorithm` and `participation`; set
    /// by the server's builder.
    pub custom: CustomNames,
}

impl Fleet {
    /// Parses `fleet.toml`.
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problem> {
        Self::read(&Source::parse(name, text, &[])?)
    }

    /// Reads and checks the configuration in a source.
    pub(super) fn read(source: &Source) -> Result<Self, Problem> {
        let root = source.root();
        let (listen, devices) = (root.section("listen")?, root.section("devices")?);
        let plaintext = security::read_plaintext(&listen)?;
        let key_files = security::read_key_files(&devices)?;
        let Listen { tcp, udp, packet, short_tags, beacon, beacon_delay, serial, baud } =
            read_listen(&listen)?;
        let rounds = read_rounds(&root.section("rounds")?)?;
        let (expected, allowed, held_out, absence) = read_devices(&devices, rounds.every)?;
        let state = PathBuf::from(root.string("state", Some("fedspan-state"), "a directory")?);
        let security = security::choose_security(&listen, plaintext, key_files, &state)?;
        let rule = read_aggregation(&root.section("aggregation")?)?;
        let model = read_model(&root.section("model")?)?;
        let algorithm = read_algorithm(&root.section("algorithm")?, &model)?;
        let (shape, scale) = read_data(&root.section("data")?)?;
        let fleet = Self {
            seed: root.integer("seed", Some(0), 0..=i64::MAX as u64)?,
            state,
            journal: root.boolean("journal", true)?,
            tcp,
            udp,
            packet,
            short_tags,
            beacon,
            beacon_delay,
            serial,
            baud,
            security,
            expected,
            first_device: 1,
            allowed,
            held_out,
            absence,
            shape,
            scale,
            model,
            algorithm,
            rule,
            participation: Policy::read(&root.section("participation")?, None)?,
            privacy: read_privacy_requirement(&root.section("privacy")?)?,
            stop_change: read_server_stop(&root.section("stop")?)?,
            rounds,
            limits: read_limits(&root.section("limits")?, rule)?,
            given: source.given_keys(),
            custom: CustomNames::default(),
        };
        root.finish()?;
        fleet.check(&root)?;
        if fleet.privacy.is_none() {
            return Ok(fleet);
        }
        // Every initial model that is allowed with privacy has a noisy variant.
        let init = fleet.model.init.clone().with_noise().unwrap_or(Init::Random);
        Ok(Self { model: ModelSection { init, ..fleet.model }, ..fleet })
    }

    /// Checks settings of different sections against each other.
    fn check(&self, root: &Section<'_>) -> Result<(), Problem> {
        let d = self.shape.features;
        if let (Some(settings), None) = (self.algorithm.learned_prior(), self.model.network) {
            let checked = settings.check_features(d);
            checked.map_err(|message| root.problem("algorithm", message))?;
        }
        self.check_network(root)?;
        if self.model.network.is_none() && self.model.k > d {
            let message =
                format!("found {}, allowed: an integer from 1 to {d}, the number of features", self.model.k);
            return Err(root.section("model")?.problem(self.model.width_key(), message));
        }
        if self.model.network.is_none() && !self.fits_frames() {
            let allowed = format!("a width at which {d} x k values fit the chunks of the largest frame");
            let message = format!("found {}, allowed: {allowed}", self.model.k);
            return Err(root.section("model")?.problem(self.model.width_key(), message));
        }
        if !matches!(self.model.init, Init::Random | Init::Power { .. }) {
            let message = "allowed for a real fleet: \"random\", \"power\" (moments reveal records)";
            return Err(root.section("model")?.problem("init", message));
        }
        if !self.algorithm.is_federated() {
            let message = format!("{:?} has no rounds to serve", self.algorithm.name());
            return Err(root.section("algorithm")?.problem("name", message));
        }
        if self.privacy.is_some() {
            check_private_algorithm(&self.algorithm, &root.section("algorithm")?)?;
            check_private_rule(self.rule, &self.algorithm, &root.section("aggregation")?)?;
        }
        check_scale(&self.scale, self.rule, self.privacy.is_some(), &root.section("data")?)?;
        let data = root.section("data")?;
        check_scaled_tensors(&self.scale, &self.engine())
            .map_err(|message| data.problem("scale", message))?;
        check_frames(&self.engine()).map_err(|message| root.problem("model", message))?;
        check_aggregation(self.rule, &self.algorithm, &root.section("aggregation")?)?;
        check_change(self.stop_change, &self.model, &root.section("stop")?)?;
        let stop = StopSection { change: self.stop_change, ..StopSection::default() };
        check_stop_of_prior(&stop, &self.algorithm, &root.section("stop")?)?;
        self.model.check_policy(&self.participation, &self.algorithm, &root.section("participation")?)?;
        if self.limits.connections < self.expected {
            let message =
                format!("found {}, {} devices are expected", self.limits.connections, self.expected);
            return Err(root.section("limits")?.problem("connections", message));
        }
        let trained = |allowed: &Vec<DeviceId>| {
            allowed.iter().filter(|device| self.held_out.binary_search(device).is_err()).count()
        };
        let allowed_count = self.allowed.as_ref().map_or(usize::MAX, trained);
        if allowed_count < self.expected {
            let held_out = if self.held_out.is_empty() { "" } else { " without those held out" };
            let message = format!("found {allowed_count}{held_out}, {} devices are expected", self.expected);
            return Err(root.section("devices")?.problem("allow", message));
        }
        let fits = self.participation.fits(self.expected, allowed_count);
        fits.map_err(|(key, message)| match root.section("participation") {
            Ok(section) => section.problem(key, message),
            Err(problem) => problem,
        })?;
        self.check_beacon(&root.section("listen")?)?;
        self.check_min_count(&root.section("rounds")?, allowed_count)
    }

    /// Checks that beacons are possible and come before the rounds are sent again.
    fn check_beacon(&self, listen: &Section<'_>) -> Result<(), Problem> {
        if self.beacon.is_none() {
            return Ok(());
        }
        if matches!(self.security, Security::Plaintext) {
            let message = "beacons need keys, by which devices recognise them; with `plaintext` each device gets its own opening";
            return Err(listen.problem("beacon", message.to_owned()));
        }
        if self.beacon_delay >= self.limits.repeat {
            let (found, repeat) = (self.beacon_delay.as_secs_f64(), self.limits.repeat.as_secs_f64());
            let message = format!(
                "found {found}, allowed: less than {repeat}, the time of limits.repeat after which the round is sent to each device"
            );
            return Err(listen.problem("beacon_delay", message));
        }
        Ok(())
    }

    /// Checks that rounds can have `min_count` updates, and that the participation policy waits for as many.
    fn check_min_count(&self, rounds: &Section<'_>, allowed_count: usize) -> Result<(), Problem> {
        let min_count = self.rounds.min_count;
        if min_count > allowed_count {
            let message = format!(
                "found {min_count}, allowed: at most {allowed_count}, the devices that are trained on"
            );
            return Err(rounds.problem("min_count", message));
        }
        let present = self.expected.max(min_count);
        let least = self.participation.least_updates(present);
        if self.custom.participation.is_none() && min_count > least {
            let message = format!(
                "found {min_count}, but with {present} devices the first rounds of policy {:?} wait for {least}: allowed: at \
                 most {least}, or let [participation] wait for more",
                self.participation.name()
            );
            return Err(rounds.problem("min_count", message));
        }
        Ok(())
    }

    /// Returns the model as devices announce it in their hello.
    #[must_use]
    pub fn model(&self) -> Model {
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        match network_shape(self.shape, &self.model) {
            Some(network) => network.model(),
            None => {
                Model::linear(to_u16(self.shape.features), to_u16(self.model.k), to_u16(self.shape.outputs))
            }
        }
    }

    /// Checks that devices can train the network and that frames can carry the tensors of the network.
    fn check_network(&self, root: &Section<'_>) -> Result<(), Problem> {
        let (Some(shape), Some(network)) = (network_shape(self.shape, &self.model), self.algorithm.network())
        else {
            return Ok(());
        };
        if self.model.base.is_some() {
            let message =
                "which simulated devices read; a real device has its own: give its checksum as \"frozen\"";
            return Err(root.section("model")?.problem("base", message));
        }
        shape.check().and_then(|()| network.method.check_shape(shape)).map_err(|message| {
            match root.section("model") {
                Ok(section) => section.problem("kind", message),
                Err(problem) => problem,
            }
        })?;
        if !network.method.is_supported_by_firmware() || !network.method.communicates() {
            let message = format!(
                "{:?} is for simulations; allowed for a real fleet of networks: \"fedrep\", \"fedper\", \"fedavg\", \
                 \"lg-fedavg\", \"learned-prior\"",
                self.algorithm.name()
            );
            return Err(root.section("algorithm")?.problem("name", message));
        }
        for encoding in [self.algorithm.upload, self.algorithm.download] {
            let tensors = shape.descriptors(SharedLayers::All, 1, encoding).into_iter().collect();
            if least_frame_limit(&tensors) > FRAME_LIMIT_MAX {
                let message =
                    format!("{} weights do not fit 256 chunks of the largest frame", shape.parameters());
                return Err(root.section("model")?.problem("hidden", message));
            }
        }
        Ok(())
    }

    /// Returns true if at least one frame limit allows all tensors that a round sends in either direction.
    fn fits_frames(&self) -> bool {
        let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (d, k, outputs) = (to_u16(self.shape.features), to_u16(self.model.k), to_u16(self.shape.outputs));
        let AlgorithmSection { upload, download, .. } = self.algorithm;
        let encodings = match self.model.init {
            Init::Power { .. } | Init::NoisyPower { .. } => [upload, download, Encoding::F32],
            _ => [upload, download, upload],
        };
        encodings.iter().all(|&encoding| {
            let representation = TensorDescriptor::inline(Role::Representation, encoding, d, k);
            let head = TensorDescriptor::inline(Role::SharedHead, encoding, k, outputs);
            let second = match self.algorithm.linear().and_then(|method| method.second_tensor()) {
                Some(SecondTensor::Head) => Some(head),
                Some(SecondTensor::Representation) => Some(representation),
                None => None,
            };
            let tensors = [representation].into_iter().chain(second).collect();
            least_frame_limit(&tensors) <= FRAME_LIMIT_MAX
        })
    }

    /// Returns advice to the operator about this configuration; `None` if there is no advice.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        rule_advice(self.rule, &self.algorithm)
    }

    /// Returns this configuration under another aggregation rule, such as a [`Rule::custom`].
    ///
    /// # Errors
    /// [`Problem`] if the rule does not fit the algorithm's uploads or the scale.
    pub fn with_rule(mut self, rule: Rule) -> Result<Self, Problem> {
        let source = Values::default().source("the given rule")?;
        let root = source.root();
        check_aggregation(rule, &self.algorithm, &root.section("aggregation")?)?;
        check_scale(&self.scale, rule, self.privacy.is_some(), &root.section("data")?)?;
        self.rule = rule;
        self.limits.samples.relative = rule.needs_all_updates();
        self.given.add("aggregation.rule");
        rule.parameters().iter().for_each(|(key, _)| self.given.add(&format!("aggregation.{key}")));
        Ok(self)
    }

    /// Creates the engine of this campaign.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.custom_engine(CustomParts::default())
    }

    /// Creates the engine of this campaign. The algorithm and the participation policy of `custom` replace
    /// the configured ones. The rule of `custom` is ignored; see [`Self::with_rule`].
    #[must_use]
    pub fn custom_engine(&self, custom: CustomParts) -> Engine {
        let settings = Settings {
            fleet_size: self.expected,
            first_device: self.first_device,
            rounds: self.algorithm.rounds,
            final_head: self.algorithm.final_head,
            deadline: self.rounds.deadline.map(Millis::from),
            every: self.rounds.every.map(Millis::from),
            min_count: self.rounds.min_count,
            norm_bound: self.limits.norm,
            samples: self.limits.samples,
            absence: self.absence.into(),
            retry_delay: Some(Millis::new(RETRY_DELAY)),
            patience: self.rounds.patience,
            stop_change: self.stop_change,
        };
        let engine = build_custom_engine(
            settings,
            self.shape,
            &self.model,
            &self.algorithm,
            self.rule,
            self.participation,
            self.rounds.over_select,
            self.seed,
            None,
            custom,
        )
        .with_scale(&self.scale, self.shape.features);
        // Devices send ridge scores without noise, so a campaign with privacy does not request them.
        if self.privacy.is_some() { engine.without_ridge_scores() } else { engine }
    }
}

/// Settings of `[listen]`.
struct Listen {
    tcp: String,
    udp: Option<String>,
    packet: usize,
    short_tags: bool,
    beacon: Option<String>,
    beacon_delay: Duration,
    serial: Vec<String>,
    baud: u32,
}

/// Longest packet over UDP that needs no fragments of IP on any link (RFC 8200, section 5: 1,280 bytes with their headers of 48).
const PACKET_DEFAULT: usize = 1232;

/// Form of an address in `[listen]`.
const ADDRESS: &str = "an address with a port, like \"127.0.0.1:4410\"";

/// Returns the address of this key, if it has a host and a port.
fn read_address(section: &Section<'_>, key: &str, default: Option<&str>) -> Result<String, Problem> {
    let address = section.string(key, default, ADDRESS)?;
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(section.problem(key, format!("found {address:?}, allowed: {ADDRESS}")));
    }
    Ok(address)
}

/// Reads `[listen]`.
fn read_listen(section: &Section<'_>) -> Result<Listen, Problem> {
    let tcp = read_address(section, "tcp", Some("127.0.0.1:4410"))?;
    let udp = section.has("udp").then(|| read_address(section, "udp", None)).transpose()?;
    let packet = section.size("packet", Some(PACKET_DEFAULT), PACKET_MIN..=65_507)?;
    let beacon = section.has("beacon").then(|| read_address(section, "beacon", None)).transpose()?;
    if section.has("packet") && udp.is_none() && beacon.is_none() {
        let message = "the length of packets over UDP, which needs `udp` or `beacon`".to_owned();
        return Err(section.problem("packet", message));
    }
    if section.has("beacon_delay") && beacon.is_none() {
        return Err(section.problem("beacon_delay", "the time to a beacon, which needs `beacon`".to_owned()));
    }
    let beacon_delay = Duration::from_secs_f64(section.number("beacon_delay", Some(0.2), 0.0..=3600.0)?);
    let short_tags = section.boolean("short_tags", true)?;
    let ports = "a list of serial ports, like [\"/dev/ttyACM0\"]";
    let serial = section.list("serial", ports, |v| v.as_str().map(str::to_owned))?.unwrap_or_default();
    let baud = section.integer("baud", Some(115_200), 300..=20_000_000)?;
    section.finish()?;
    let mut distinct = serial.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < serial.len() || serial.iter().any(String::is_empty) {
        let message = format!("found {serial:?}, allowed: {ports}, each once");
        return Err(section.problem("serial", message));
    }
    let baud = u32::try_from(baud).unwrap_or(u32::MAX);
    Ok(Listen { tcp, udp, packet, short_tags, beacon, beacon_delay, serial, baud })
}

/// Settings of `[devices]`: the number of expected devices, the allowed and the held-out devices, and the time of absence.
type Devices = (usize, Option<Vec<DeviceId>>, Vec<DeviceId>, Duration);

/// Default of `absence` in seconds, and in intervals between rounds where these are given.
const ABSENCE: (f64, f64) = (30.0, 2.0);

/// Reads `[devices]`. The default of `absence` depends on the interval `every` between rounds, for which devices may
/// sleep.
fn read_devices(section: &Section<'_>, every: Option<Duration>) -> Result<Devices, Problem> {
    let expected = section.size("expected", None, 1..=1_000_000)?;
    let list = |key: &str| {
        let allowed = "a list of device numbers from 0";
        let listed = section
            .list(key, allowed, |v| v.as_integer().and_then(|n| u64::try_from(n).ok()).map(DeviceId))?;
        Ok(listed.map(|mut devices: Vec<DeviceId>| {
            devices.sort_unstable();
            devices.dedup();
            devices
        }))
    };
    let (allowed, held_out) = (list("allow")?, list("held_out")?.unwrap_or_default());
    let default = every.map_or(0.0, |every| ABSENCE.1 * every.as_secs_f64()).clamp(ABSENCE.0, 1e7);
    let absence = section.number("absence", Some(default), 0.0..=1e7)?;
    section.finish()?;
    Ok((expected, allowed, held_out, Duration::from_secs_f64(absence)))
}

/// Reads `[data]`: the dimensions of the data and the scale of samples.
pub(super) fn read_data(section: &Section<'_>) -> Result<(Shape, ScaleSource), Problem> {
    let shape = Shape {
        features: section.size("d", None, 1..=65_535)?,
        outputs: section.size("outputs", Some(1), 1..=256)?,
        image: read_image(section)?,
    };
    if let Some(Image { height, width, channels }) = shape.image
        && [height, width, channels].into_iter().map(usize::from).product::<usize>() != shape.features
    {
        let message = format!("found {height} x {width} x {channels} values, d is {}", shape.features);
        return Err(section.problem("image", message));
    }
    let scale = read_scale(section, shape.features)?;
    section.finish()?;
    Ok((shape, scale))
}

/// Reads the key `image`: height, width and channels of samples that are images.
fn read_image(section: &Section<'_>) -> Result<Option<Image>, Problem> {
    let allowed = "a list of 3 integers from 1: rows, pixels of a row, values of a pixel";
    let size = |value: &toml_edit::Value| {
        value.as_integer().and_then(|size| u16::try_from(size).ok()).filter(|size| *size >= 1)
    };
    match section.list("image", allowed, size)?.as_deref() {
        None => Ok(None),
        Some(&[height, width, channels]) => Ok(Some(Image { height, width, channels })),
        Some(list) => {
            Err(section.problem("image", format!("found {} of them, allowed: {allowed}", list.len())))
        }
    }
}
