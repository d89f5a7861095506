//! Test helpers: reference implementation of the baseline algorithms from the formulas of the papers, in f64
//! and with one batch of all samples. Gradients are central differences.

use fedspan_engine::algorithm::network::{
    Apfl, Ditto, FedMtl, FedProx, L2gd, NetworkMethod, PerFedAvg, Scaffold,
};
use fedspan_protocol::message::Descent;
use fedspan_sim_core::data::{Labels, Set};

use crate::baselines::fleet::{C, D, H};

type Vector = Vec<f64>;

/// Mean cross-entropy of the network `w` on a set.
fn loss(set: &Set, w: &[f64]) -> f64 {
    let Labels::Classes(classes) = &set.y else { panic!("classes") };
    let dense = |x: &[f64], w: &[f64], outputs: usize| -> Vector {
        let with_constant = x.iter().copied().chain([1.0]);
        let products = with_constant.zip(w.chunks(outputs));
        products
            .fold(vec![0.0; outputs], |sum, (x, row)| sum.iter().zip(row).map(|(s, w)| s + x * w).collect())
    };
    let sample_loss = |(x, class): (&[f32], &u8)| {
        let x: Vector = x.iter().map(|value| f64::from(*value)).collect();
        let hidden: Vector = dense(&x, &w[..(D + 1) * H], H).iter().map(|value| value.max(0.0)).collect();
        let logits = dense(&hidden, &w[(D + 1) * H..], C);
        logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[usize::from(*class)]
    };
    set.x.chunks(D).zip(classes).map(sample_loss).sum::<f64>() / classes.len() as f64
}

/// Sum `a + factor b`.
pub fn plus(a: &[f64], factor: f64, b: &[f64]) -> Vector {
    a.iter().zip(b).map(|(a, b)| a + factor * b).collect()
}

/// Difference `a - b`.
pub fn minus(a: &[f64], b: &[f64]) -> Vector {
    plus(a, -1.0, b)
}

/// Gradient of [`loss`] at `w`.
pub fn gradient(set: &Set, w: &[f64]) -> Vector {
    let loss_at = |index: usize, h: f64| {
        let mut shifted = w.to_vec();
        shifted[index] += h;
        loss(set, &shifted)
    };
    (0..w.len()).map(|index| (loss_at(index, 1e-5) - loss_at(index, -1e-5)) / 2e-5).collect()
}

/// State of a device: personal network, control variate of SCAFFOLD, and mixing weight of APFL.
#[derive(Clone)]
pub struct Device {
    pub own: Vector,
    pub control: Vector,
    pub alpha: f64,
}

/// Server and devices of the reference implementation.
pub struct Oracle {
    pub method: NetworkMethod,
    pub descent: Descent,
    pub epochs: u16,
    pub shared: Vector,
    pub control: Vector,
    pub devices: Vec<Device>,
}

impl Oracle {
    /// Creates a server and three devices that start from the network `start`.
    pub fn new(method: NetworkMethod, descent: Descent, epochs: u16, start: Vector) -> Self {
        let alpha = if let NetworkMethod::Apfl(Apfl { mixing_weight, .. }) = method {
            mixing_weight.into()
        } else {
            0.0
        };
        let control = vec![0.0; start.len()];
        let device = Device { own: start.clone(), control: control.clone(), alpha };
        Self { method, descent, epochs, shared: start, control, devices: vec![device; 3] }
    }

    /// Inner step size of Per-FedAvg; 0 for other methods.
    fn inner_step(&self) -> f64 {
        match self.method {
            NetworkMethod::PerFedAvg(PerFedAvg { inner_step }) => inner_step.into(),
            NetworkMethod::PerFedAvgHf(PerFedAvg { inner_step }) => inner_step.into(),
            _ => 0.0,
        }
    }

    /// Descends with momentum from `w`, one step per epoch, where `direction` computes the gradient.
    fn descend(&self, mut w: Vector, mut direction: impl FnMut(&[f64]) -> Vector) -> Vector {
        let mut velocity = vec![0.0; w.len()];
        for _ in 0..self.epochs {
            velocity = plus(&direction(&w), self.descent.momentum.into(), &velocity);
            w = plus(&w, -f64::from(self.descent.step_size), &velocity);
        }
        w
    }

    /// Local part of a round: returns the device's upload and SCAFFOLD's change of the control variate.
    fn local_round(&self, device: &mut Device, set: &Set) -> (Vector, Vector) {
        let (w0, zero) = (&self.shared, vec![0.0; self.shared.len()]);
        let g = |w: &[f64]| gradient(set, w);
        let proximal_gradient = |weight: f32, w: &[f64]| plus(&g(w), weight.into(), &minus(w, w0));
        match self.method {
            NetworkMethod::FedProx(FedProx { proximal_weight }) => {
                (self.descend(w0.clone(), |w| proximal_gradient(proximal_weight, w)), zero)
            }
            NetworkMethod::Scaffold(Scaffold) => {
                let correction = minus(&self.control, &device.control);
                let y = self.descend(w0.clone(), |w| plus(&g(w), 1.0, &correction));
                let total_step = f64::from(self.epochs) * f64::from(self.descent.step_size);
                let control = plus(&minus(&device.control, &self.control), 1.0 / total_step, &minus(w0, &y));
                let change = minus(&control, &device.control);
                device.control = control;
                (y, change)
            }
            NetworkMethod::PerFedAvg(_) | NetworkMethod::PerFedAvgHf(_) => {
                let alpha = self.inner_step();
                let hessian_free = matches!(self.method, NetworkMethod::PerFedAvgHf(_));
                let step = |w: &[f64]| {
                    let outer = g(&plus(w, -alpha, &g(w)));
                    if !hessian_free {
                        return outer;
                    }
                    let ahead = g(&plus(w, 1e-4, &outer));
                    let product = minus(&ahead, &g(&plus(w, -1e-4, &outer)));
                    plus(&outer, -alpha / 2e-4, &product)
                };
                (self.descend(w0.clone(), step), zero)
            }
            NetworkMethod::Ditto(Ditto { proximal_weight }) => {
                device.own = self.descend(device.own.clone(), |v| proximal_gradient(proximal_weight, v));
                (self.descend(w0.clone(), g), zero)
            }
            NetworkMethod::Apfl(Apfl { mixing_step_size, .. }) => {
                let mixed = |alpha: f64, v: &[f64], w: &[f64]| plus(&plus(w, alpha, v), -alpha, w);
                let slope = g(&mixed(device.alpha, &device.own, w0));
                let difference = minus(&device.own, w0);
                let product: f64 = slope.iter().zip(&difference).map(|(g, a)| g * a).sum();
                device.alpha = (device.alpha - f64::from(mixing_step_size) * product).clamp(0.0, 1.0);
                let (alpha, length) = (device.alpha, w0.len());
                // Concatenation of the shared network w and the personal network v.
                let networks = [w0.as_slice(), &device.own].concat();
                let networks = self.descend(networks, |networks| {
                    let (w, v) = networks.split_at(length);
                    let personal: Vector = g(&mixed(alpha, v, w)).iter().map(|g| alpha * g).collect();
                    [g(w), personal].concat()
                });
                device.own = networks[length..].to_vec();
                (networks[..length].to_vec(), zero)
            }
            NetworkMethod::L2gd(L2gd { averaging_step, .. }) => {
                let averaged = plus(&device.own, averaging_step.into(), &minus(w0, &device.own));
                device.own = self.descend(averaged, g);
                (device.own.clone(), zero)
            }
            NetworkMethod::FedMtl(FedMtl { proximal_weight }) => {
                device.own = self.descend(device.own.clone(), |w| proximal_gradient(proximal_weight, w));
                (device.own.clone(), zero)
            }
            _ => panic!("{:?} has no reference implementation", self.method),
        }
    }

    /// Runs one round with the given participants; `sets` contains the data of all devices.
    pub fn run_round(&mut self, participants: &[usize], sets: &[Set]) {
        let mut devices = self.devices.clone();
        let (mut mean, mut changes) = (vec![0.0; self.shared.len()], vec![0.0; self.shared.len()]);
        for &index in participants {
            let (uploaded, change) = self.local_round(&mut devices[index], &sets[index]);
            mean = plus(&mean, 1.0 / participants.len() as f64, &uploaded);
            changes = plus(&changes, 1.0 / self.devices.len() as f64, &change);
        }
        self.devices = devices;
        self.shared = mean;
        self.control = plus(&self.control, 1.0, &changes);
    }

    /// Network with which the paper evaluates a device.
    pub fn scored(&self, device: usize, set: &Set) -> Vector {
        let Device { own, alpha, .. } = &self.devices[device];
        match self.method {
            NetworkMethod::Ditto(_) | NetworkMethod::L2gd(_) | NetworkMethod::FedMtl(_) => own.clone(),
            NetworkMethod::Apfl(_) => plus(&plus(&self.shared, *alpha, own), -alpha, &self.shared),
            NetworkMethod::PerFedAvg(_) | NetworkMethod::PerFedAvgHf(_) => {
                plus(&self.shared, -self.inner_step(), &gradient(set, &self.shared))
            }
            _ => self.shared.clone(),
        }
    }
}
