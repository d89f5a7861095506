//! Tests of a run on npz data from a given initial representation: comparison with FedRep in f64.

use crate::common::{empty_directory, exit_code, random_numbers, run_program, stderr_text, write_npz};
use fedspan_engine::linalg::Matrix;
use fedspan_sim_core::data::npz;

const CLIENTS: usize = 12;
const SAMPLES: usize = 15;
const FEATURES: usize = 8;
const WIDTH: usize = 3;
const ROUNDS: usize = 50;
const STEP: f64 = 0.3;

/// Orthonormalises the columns of a matrix.
fn gram_schmidt(b: &Matrix) -> Matrix {
    let mut q = b.clone();
    for j in 0..q.ncols() {
        for i in 0..j {
            let along = q.column(i).dot(&q.column(j));
            let finished_column = q.column(i).clone_owned();
            q.column_mut(j).axpy(-along, &finished_column, 1.0);
        }
        let norm = q.column(j).norm();
        q.column_mut(j).unscale_mut(norm);
    }
    q
}

/// Reference implementation of FedRep (Collins et al. 2021, Algorithm 1) with full participation.
fn reference_fedrep(x: &[Matrix], y: &[Matrix], start: &Matrix) -> Matrix {
    let mut b = gram_schmidt(start);
    for _ in 0..ROUNDS {
        let mut mean = Matrix::zeros(FEATURES, WIDTH);
        for (x, y) in x.iter().zip(y) {
            let z = x * &b;
            let w = (z.transpose() * &z).cholesky().unwrap().solve(&(z.transpose() * y));
            let residual = z * &w - y;
            mean += x.transpose() * residual * w.transpose() / (SAMPLES * CLIENTS) as f64;
        }
        b = gram_schmidt(&(b - mean * STEP));
    }
    b
}

#[test]
fn run_from_given_start_agrees_with_the_reference() {
    let folder = empty_directory("reference");
    // Devices compute with f32, so the reference uses values that are rounded to f32.
    let round_to_f32 =
        |values: Vec<f64>| values.into_iter().map(|v| f64::from(v as f32)).collect::<Vec<f64>>();
    let truth = gram_schmidt(&Matrix::from_vec(FEATURES, WIDTH, random_numbers(FEATURES * WIDTH, 3)));
    let all_features = round_to_f32(random_numbers(CLIENTS * SAMPLES * FEATURES, 1));
    let heads = random_numbers(CLIENTS * WIDTH, 2);
    let noise = random_numbers(CLIENTS * SAMPLES, 4);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for client in 0..CLIENTS {
        let rows = &all_features[client * SAMPLES * FEATURES..(client + 1) * SAMPLES * FEATURES];
        let features = Matrix::from_row_slice(SAMPLES, FEATURES, rows);
        let w = Matrix::from_column_slice(WIDTH, 1, &heads[client * WIDTH..(client + 1) * WIDTH]);
        let errors = Matrix::from_column_slice(SAMPLES, 1, &noise[client * SAMPLES..(client + 1) * SAMPLES]);
        let noisy = &features * &truth * w + errors * 0.1;
        y.push(Matrix::from_vec(SAMPLES, 1, round_to_f32(noisy.iter().copied().collect())));
        x.push(features);
    }
    let targets: Vec<f64> = y.iter().flat_map(|y| y.iter().copied()).collect();
    let (n, m, d, k) = (CLIENTS as u64, SAMPLES as u64, FEATURES as u64, WIDTH as u64);
    write_npz(&folder.join("data.npz"), &[("x", &[n, m, d], &all_features), ("y", &[n, m], &targets)]);
    let start = Matrix::from_vec(FEATURES, WIDTH, random_numbers(FEATURES * WIDTH, 5));
    let rows: Vec<f64> = start.transpose().iter().copied().collect();
    npz::write(&folder.join("B0.npy"), &[d, k], &rows).unwrap();
    let scenario = format!(
        "[data]\nkind = \"npz\"\npath = \"data.npz\"\n[model]\nk = {WIDTH}\ninit = \"npy:B0.npy\"\n\
         [algorithm]\nname = \"fedrep\"\nrounds = {ROUNDS}\nstep_size = {STEP}\n\
         [participation]\npolicy = \"full\"\n"
    );
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let output = run_program(&folder, &["run", "my.toml", "--out", "out"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));

    let b =
        npz::read_matrix(folder.join("out/model/representation.npy").to_str().unwrap(), FEATURES).unwrap();
    let reference = reference_fedrep(&x, &y, &start);
    let distance =
        |a: &Matrix, b: &Matrix| (a * a.transpose() - b * b.transpose()).symmetric_eigenvalues().amax();
    assert!(
        distance(&gram_schmidt(&start), &reference) > 0.1,
        "fifty rounds hardly changed the representation"
    );
    let difference = distance(&b, &reference);
    assert!(difference < 1e-4, "projectors differ by {difference:e}");
}

#[test]
fn files_are_found_relative_to_the_scenario() {
    let folder = empty_directory("beside");
    let values = random_numbers(60, 1);
    std::fs::create_dir(folder.join("deep")).unwrap();
    write_npz(&folder.join("deep/data.npz"), &[("x", &[3, 4, 5], &values), ("y", &[3, 4], &values[..12])]);
    let scenario = "[data]\nkind = \"npz\"\npath = \"data.npz\"\n[model]\nk = 2\n\
                    [algorithm]\nname = \"fedrep\"\nrounds = 2\nstep_size = 0.1\n";
    std::fs::write(folder.join("deep/my.toml"), scenario).unwrap();
    let output = run_program(&folder, &["run", "deep/my.toml"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
}
