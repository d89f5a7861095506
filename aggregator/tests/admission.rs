//! Tests of admission: every reason to refuse a hello, and the precedence of the reasons.

use crate::common::create_hello;
use fedspan_aggregator::config::Fleet;
use fedspan_engine::DeviceId;
use fedspan_engine::admission::Requirements;
use fedspan_protocol::message::{FITS_BY_STEPS, Hello, Model, Numeric, Refusal, Requirement};

const SHAPE: (u16, u16, u16) = (20, 3, 2);
const MODEL: Model = Model::linear(20, 3, 2);

/// Returns the requirements of a campaign with this shape (d, k, outputs), algorithm and list of allowed
/// devices.
fn requirements_of(shape: (u16, u16, u16), algorithm: &str, allowed: Option<Vec<DeviceId>>) -> Requirements {
    let (d, k, outputs) = shape;
    let configuration = format!(
        "[devices]\nexpected = 2\n[data]\nd = {d}\noutputs = {outputs}\n[model]\nk = {k}\n\
         [algorithm]\nrounds = 3\nstep_size = 0.1\n{algorithm}\n"
    );
    let fleet = Fleet::parse("test", &configuration).unwrap();
    let model = Model::linear(d, k, outputs);
    Requirements::new(model, &fleet.engine().requests(), allowed)
}

fn requirements(algorithm: &str) -> Requirements {
    requirements_of(SHAPE, algorithm, None)
}

/// Returns the hello of an admissible device after `change`.
fn hello_with(change: impl Fn(&mut Hello)) -> Hello {
    let mut hello = create_hello(5, SHAPE, 256);
    change(&mut hello);
    hello
}

#[test]
fn capable_devices_are_admitted() {
    for algorithm in
        ["name = \"fedrep\"", "name = \"gd-gd\"\nupload = \"i8\"\ndownload = \"f16\"", "name = \"fedavg\""]
    {
        let requirements_of_campaign = requirements(algorithm);
        assert_eq!(requirements_of_campaign.admit(&hello_with(|_| {})), Ok(()), "{algorithm}");
        let capabilities_to_spare = |h: &mut Hello| {
            h.capabilities.tensor_elements = u32::MAX;
            h.capabilities.total_elements = u32::MAX;
            h.capabilities.tasks = u32::MAX;
            h.capabilities.frame_limit = 4096;
        };
        assert_eq!(requirements_of_campaign.admit(&hello_with(capabilities_to_spare)), Ok(()), "{algorithm}");
    }
}

#[test]
fn refusals_name_the_missing_capability() {
    let fedrep = requirements("name = \"fedrep\"");
    let refusal_of =
        |needs: &Requirements, change: &dyn Fn(&mut Hello)| needs.admit(&hello_with(change)).unwrap_err();

    // A device without this solver could not read the task.
    let steps = Refusal::Capability(Requirement::Roles(FITS_BY_STEPS));
    assert_eq!(
        refusal_of(&requirements("name = \"gd-gd\""), &|h| h.capabilities.roles &= !FITS_BY_STEPS),
        steps
    );
    assert_eq!(steps.to_string(), "the campaign needs heads by gradient steps");
    assert_eq!(fedrep.admit(&hello_with(|h| h.capabilities.roles &= !FITS_BY_STEPS)), Ok(()));

    let shape = Refusal::Model { expected: MODEL };
    for (features, width, outputs) in [(21, 3, 2), (20, 2, 2), (20, 3, 1)] {
        let model = Model::linear(features, width, outputs);
        assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.model = model), shape);
    }
    for limit in [0, 1, 127, 16385, u16::MAX] {
        let expected = Refusal::FrameLimit { min: 128, max: 16384 };
        assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.frame_limit = limit), expected);
    }
    for limit in [128, 16384] {
        assert_eq!(fedrep.admit(&hello_with(|h| h.capabilities.frame_limit = limit)), Ok(()));
    }
    // Packets carry shorter frames than a stream.
    for limit in [128, 4096, 4097, 16384] {
        let expected = Err(Refusal::FrameLimit { min: 128, max: 4096 });
        let admission = fedrep.admit_over(&hello_with(|h| h.capabilities.frame_limit = limit), 4096);
        assert_eq!(admission, if limit > 4096 { expected } else { Ok(()) });
    }
    // The refusal names exactly the missing tasks: fedrep (bit 0) and fit-head (bit 1).
    let tasks = |set| Refusal::Capability(Requirement::Tasks(set));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.tasks = 0), tasks(0b11));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.tasks = 0b01), tasks(0b10));
    assert_eq!(
        refusal_of(&requirements("name = \"fedavg\""), &|h| h.capabilities.tasks = 0b011),
        tasks(0b100)
    );
    // The required roles depend on the upload: a gradient (bit 0x02), a representation (0x01), or a
    // representation and a shared head (0x40).
    let roles = |set| Refusal::Capability(Requirement::Roles(set));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.roles = 0xfd), roles(0x02));
    let steps = requirements("name = \"fedrep\"\nsend = \"representation\"");
    assert_eq!(refusal_of(&steps, &|h| h.capabilities.roles = 0x02), roles(0x01));
    assert_eq!(refusal_of(&requirements("name = \"fedavg\""), &|h| h.capabilities.roles = 0x03), roles(0x40));
    // F32 is always required, and so are the encodings of both directions.
    let encodings = |set| Refusal::Capability(Requirement::Encodings(set));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.encodings = 0b110), encodings(0b001));
    let i8_upload = requirements("name = \"fedrep\"\nupload = \"i8\"");
    assert_eq!(refusal_of(&i8_upload, &|h| h.capabilities.encodings = 0b011), encodings(0b100));
    let f16_download = requirements("name = \"fedrep\"\ndownload = \"f16\"");
    assert_eq!(refusal_of(&f16_download, &|h| h.capabilities.encodings = 0b101), encodings(0b010));

    let elements = Refusal::Capability(Requirement::TensorElements(60));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.tensor_elements = 59), elements);
    // FedAvg sends a shared head with the representation and thus two tensors; FedRep sends one.
    let fedavg = requirements("name = \"fedavg\"");
    let tensors = Refusal::Capability(Requirement::Tensors(2));
    assert_eq!(refusal_of(&fedavg, &|h| h.capabilities.tensors = 1), tensors);
    assert_eq!(fedrep.admit(&hello_with(|h| h.capabilities.tensors = 1)), Ok(()));
    assert_eq!(
        refusal_of(&fedrep, &|h| h.capabilities.tensors = 0),
        Refusal::Capability(Requirement::Tensors(1))
    );
    let total = |count| Refusal::Capability(Requirement::TotalElements(count));
    assert_eq!(refusal_of(&fedavg, &|h| h.capabilities.total_elements = 65), total(66));
    assert_eq!(fedavg.admit(&hello_with(|h| h.capabilities.total_elements = 66)), Ok(()));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.total_elements = 59), total(60));
    assert_eq!(fedrep.admit(&hello_with(|h| h.capabilities.total_elements = 60)), Ok(()));
    assert_eq!(total(66).to_string(), "the campaign needs 66 elements in one direction of a round");
    // All devices of a campaign use the same arithmetic.
    let wrong_numeric = |numeric| Refusal::Capability(Requirement::Numeric(numeric));
    assert_eq!(refusal_of(&fedrep, &|h| h.capabilities.numeric = Numeric::I16), wrong_numeric(Numeric::F32));
    let i16_requirements = fedrep.with_numeric(Some(Numeric::I16));
    assert_eq!(
        refusal_of(&i16_requirements, &|h| h.capabilities.numeric = Numeric::F32),
        wrong_numeric(Numeric::I16)
    );
    assert_eq!(i16_requirements.admit(&hello_with(|h| h.capabilities.numeric = Numeric::I16)), Ok(()));
}

#[test]
fn allow_list_restricts_devices() {
    let requirements_of_list =
        requirements_of(SHAPE, "name = \"fedrep\"", Some(vec![DeviceId(3), DeviceId(5), DeviceId(u64::MAX)]));
    for device in [3, 5, u64::MAX] {
        assert_eq!(requirements_of_list.admit(&hello_with(|h| h.device = device)), Ok(()));
    }
    for device in [0, 4, u64::MAX - 1] {
        assert_eq!(
            requirements_of_list.admit(&hello_with(|h| h.device = device)),
            Err(Refusal::UnknownDevice)
        );
    }
}

#[test]
fn start_is_part_of_requirements() {
    let configuration = "[devices]\nexpected = 2\n[data]\nd = 20\noutputs = 2\n[model]\nk = 3\ninit = \"power\"\n\
                [algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.1\n";
    let fleet = Fleet::parse("test", configuration).unwrap();
    let requirements_with_start = Requirements::new(MODEL, &fleet.engine().requests(), None);
    let without_start_task = hello_with(|h| h.capabilities.tasks = 0b0011);
    assert_eq!(
        requirements_with_start.admit(&without_start_task),
        Err(Refusal::Capability(Requirement::Tasks(0b1000)))
    );
    // The start uploads subspaces, whose role is bit 0x08.
    let without_start_role = hello_with(|h| h.capabilities.roles = 0x02);
    assert_eq!(
        requirements_with_start.admit(&without_start_role),
        Err(Refusal::Capability(Requirement::Roles(0x08)))
    );
}

/// A round has at most 256 chunks in each direction. A device whose frame limit needs more chunks is refused,
/// because it could not receive a round.
#[test]
fn small_frame_limits_are_refused_with_minimum() {
    let shape = (784, 8, 1);
    let f32_requirements = requirements_of(shape, "name = \"fedrep\"", None);
    let admit_with_limit = |limit| f32_requirements.admit(&create_hello(1, shape, limit));
    // 6272 values in 256 chunks are 25 values per chunk: 100 bytes, plus 40 bytes of overhead.
    assert_eq!(admit_with_limit(128), Err(Refusal::FrameLimit { min: 140, max: 16384 }));
    assert_eq!(admit_with_limit(139), Err(Refusal::FrameLimit { min: 140, max: 16384 }));
    assert_eq!(admit_with_limit(140), Ok(()));
    // Values in half precision need smaller frames. With only the download in half precision, the upload
    // determines the limit.
    let f16_requirements =
        requirements_of(shape, "name = \"fedrep\"\ndownload = \"f16\"\nupload = \"f16\"", None);
    assert_eq!(f16_requirements.admit(&create_hello(1, shape, 128)), Ok(()));
    let f16_download = requirements_of(shape, "name = \"fedrep\"\ndownload = \"f16\"", None);
    assert_eq!(
        f16_download.admit(&create_hello(1, shape, 128)),
        Err(Refusal::FrameLimit { min: 140, max: 16384 })
    );
}
