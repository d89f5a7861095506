//! Tests of golden campaigns, which earlier versions stopped in the middle of a round. This version must
//! resume each campaign and make the same decisions, bit for bit.

use crate::common::Scratch;
use crate::common::golden::{
    GoldenCampaign, RESUMED, copy_golden_files, golden_configuration, golden_directory, write_golden_files,
};
use fedspan_aggregator::check::check;
use fedspan_aggregator::config::Fleet;
use fedspan_engine::Phase;

/// Directories in `tests/golden`: name, open round, number of updates counted in that round, and whether this
/// version writes such a directory. The other directories have legacy settings.
const CAMPAIGNS: [(&str, (Phase, usize), bool); 7] = [
    ("store-5-network", (Phase::Train(2), 2), false),
    ("store-5-fedpower", (Phase::Train(2), 3), false),
    ("store-5-doubling-adaptive", (Phase::Train(2), 3), false),
    ("store-5-doubling-fixed", (Phase::Train(3), 2), false),
    ("store-5-start", (Phase::Start(2), 2), false),
    ("store-5-words-network", (Phase::Train(2), 2), true),
    ("store-5-words-doubling", (Phase::Train(2), 1), true),
];

/// Stored settings that the file does not set still apply, although their defaults have changed. If the file
/// sets another value, the campaign is refused.
#[test]
fn stored_settings_override_defaults_not_the_file() {
    let scratch = Scratch::new();
    let (name, state) = ("store-5-doubling-fixed", scratch.path().join("state"));
    copy_golden_files(name, &state);
    let required = format!(
        "state = {:?}\n[listen]\nplaintext = true\n[devices]\nexpected = 7\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\n\
         name = \"gd-gd\"\nrounds = 5\nstep_size = 0.1\n",
        state.display().to_string()
    );
    let explicit = format!("{required}[aggregation]\nrule = \"mean\"\n[limits]\nsamples = 4\n");
    let explicit = Fleet::parse("fleet.toml", &explicit).unwrap();
    let report = check(&explicit).unwrap().expect("the directory has no campaign");
    let differs = "begun under another configuration (- stored, + given): - aggregation.rule = \"trimmed-mean\", + aggregation.rule = \
                   \"mean\"; restore the lines";
    assert!(report.faults.iter().any(|fault| fault.contains(differs)), "{report:?}");

    let report = check(&Fleet::parse("fleet.toml", &required).unwrap())
        .unwrap()
        .expect("the directory has no campaign");
    assert!(report.faults.is_empty(), "{report:?}");
    let stored_settings = "settings of the campaign that the file does not set: seed = 8, data.outputs = 2, model.init = \"power\", \
                model.power_iterations = 2, algorithm.final_ridge = 0.0, algorithm.send = \"representation\", algorithm.upload = \"f16\", aggregation.rule = \
                \"trimmed-mean\", aggregation.trim = 0.25, participation.policy = \"doubling\", participation.n0 = 3";
    assert!(report.facts.iter().any(|line| line.starts_with(stored_settings)), "{report:?}");
    let expected = std::fs::read_to_string(golden_directory(name).join(RESUMED)).unwrap();
    assert_eq!(GoldenCampaign::new(&required).join_all_devices().run_to_end(), expected);
}

/// Resumes every golden campaign. FEDSPAN_REGENERATE_VECTORS=1 rewrites the directories that this version can
/// write, which is allowed only before the first release.
#[test]
fn golden_campaigns_resume_with_same_decisions() {
    for (name, stop_point, is_current) in CAMPAIGNS {
        let scratch = Scratch::new();
        let state = scratch.path().join("state");
        if is_current && std::env::var_os("FEDSPAN_REGENERATE_VECTORS").is_some() {
            write_golden_files(name, stop_point, &state);
        }
        copy_golden_files(name, &state);
        let configuration = golden_configuration(name, &state);
        let report = check(&Fleet::parse("fleet.toml", &configuration).unwrap())
            .unwrap()
            .expect("the directory has no campaign");
        assert!(report.faults.is_empty(), "{name}: {report:?}");
        let counted = format!("with {} updates", stop_point.1);
        assert!(report.facts.iter().any(|line| line.contains(&counted)), "{name}: {report:?}");
        let campaign = GoldenCampaign::new(&configuration);
        let engine = campaign.durable_engine.engine();
        assert_eq!((campaign.durable_engine.campaign(), engine.phase()), (7, stop_point.0), "{name}");
        assert_eq!(engine.open_round().unwrap().participants.len(), stop_point.1, "{name}");
        let expected = std::fs::read_to_string(golden_directory(name).join(RESUMED)).unwrap();
        assert_eq!(campaign.join_all_devices().run_to_end(), expected, "{name}");
        let journal = std::fs::read_to_string(golden_directory(name).join("arrivals.jsonl")).unwrap();
        assert_eq!(journal.contains("algorithm.final_head"), !is_current, "{name}");
    }
}
