//! Bad input: what is refused, and who is told.

use std::sync::PoisonError;

use annulus_ddp::candle::{Ddp, Settings};
use annulus_ddp::{Error, Options, Unused};
use candle_core::DType;
use candle_nn::{VarBuilder, VarMap, linear};

use crate::fixture::{CPU, Net, rows, small, varmap};
use crate::ranks::on_ranks;

#[test]
fn variables_that_a_pass_does_not_use_are_named_or_left_alone() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        linear(2, 2, VarBuilder::from_varmap(&varmap, DType::F32, &CPU).pp("spare"))
            .expect("a layer");
        let loss = |ddp: &Ddp| {
            Net::new(ddp.var_builder()).and_then(|net| net.loss(&rows(0, 4))).expect("a loss")
        };
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let error = ddp.backward(&loss(&ddp), None).expect_err("unused").to_string();
        assert!(
            error.contains("`spare.bias`, `spare.weight`") && error.contains("rank 0"),
            "{error}"
        );
        let options = Options { unused: Unused::Zero, ..small() };
        let ddp = Ddp::with(&varmap, &comm, Settings { options, ..Settings::default() })
            .expect("equal models");
        let (gradients, report) = ddp.backward(&loss(&ddp), None).expect("reduced");
        assert_eq!(report.unused.len(), 2);
        let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        assert!(gradients.get(data["spare.bias"].as_tensor()).is_none());
    });
}

#[test]
fn a_variable_used_from_the_builder_and_directly_is_refused() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let hooked = Net::new(ddp.var_builder()).and_then(|net| net.loss(&rows(0, 4)));
        let plain = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &CPU))
            .and_then(|net| net.loss(&rows(0, 4)));
        let both = (hooked.expect("a loss") + plain.expect("a loss")).expect("a sum");
        let error = ddp.backward(&both, None).expect_err("incomplete").to_string();
        assert!(error.contains("is used both from Ddp::var_builder and directly"), "{error}");
    });
}

#[test]
fn a_variable_from_two_builders_is_refused() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let loss =
            || Net::new(ddp.var_builder()).and_then(|net| net.loss(&rows(0, 4))).expect("a loss");
        let both = (loss() + loss()).expect("a sum");
        let error = ddp.backward(&both, None).expect_err("incomplete").to_string();
        assert!(error.contains("marked as ready twice"), "{error}");
        ddp.backward(&loss(), None).expect("the next step is whole");
    });
}

#[test]
fn varmaps_that_differ_are_refused_on_every_rank() {
    let errors = on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        if comm.rank() == 1 {
            let more = VarBuilder::from_varmap(&varmap, DType::F32, &CPU).pp("layer3");
            linear(6, 6, more).expect("a layer");
        }
        Ddp::new(&varmap, &comm).expect_err("differ").to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("has 8 parameters where rank 0 has 6 parameters"), "{}", errors[0]);
}

#[test]
fn an_empty_varmap_is_refused() {
    on_ranks(2, |comm| {
        assert!(matches!(Ddp::new(&VarMap::new(), &comm), Err(Error::NoParameters)));
    });
}

#[test]
fn a_loss_without_gradients_is_told_to_every_rank() {
    let errors = on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let net = Net::new(ddp.var_builder()).expect("a net");
        let loss = net.loss(&rows(0, 4)).expect("a loss");
        let loss = if comm.rank() == 1 { loss.detach() } else { loss };
        ddp.backward(&loss, None).expect_err("nothing came").to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("rank 1: no gradient came for `layer0.bias`"), "{}", errors[0]);
}

#[test]
fn gradients_that_are_not_numbers_are_named() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let options = Options { check_finite: true, ..small() };
        let ddp = Ddp::with(&varmap, &comm, Settings { options, ..Settings::default() })
            .expect("equal models");
        let scale = if comm.rank() == 1 { f32::NAN } else { 1.0 };
        let batch = (rows(0, 4) * f64::from(scale)).expect("rows");
        let loss = Net::new(ddp.var_builder()).and_then(|net| net.loss(&batch)).expect("a loss");
        let (_, report) = ddp.backward(&loss, None).expect("reduced");
        let broken = report.non_finite.expect("found");
        assert_eq!(broken.rank, Some(1));
        assert!(broken.parameter.starts_with("layer"), "{broken:?}");
    });
}

#[test]
fn a_checkpoint_of_another_model_changes_nothing() {
    let path =
        std::env::temp_dir().join(format!("annulus-ddp-other-{}.safetensors", std::process::id()));
    on_ranks(2, |comm| {
        let map = varmap(0.2);
        let ddp = Ddp::new(&map, &comm).expect("equal models");
        let init = candle_nn::Init::Const(3.0);
        let other = VarMap::new();
        other.get((6, 6), "layer0.weight", init, DType::F32, &CPU).expect("a variable");
        other.get(7, "layer0.bias", init, DType::F32, &CPU).expect("a variable");
        Ddp::new(&other, &comm).and_then(|other| other.save(&path)).expect("written");
        let before = ddp.compare_weights().expect("the same");
        let error = ddp.load(&path).expect_err("another model").to_string();
        assert!(error.contains("`layer0.bias` has shape [7], the variable [6]"), "{error}");
        assert_eq!(ddp.compare_weights().expect("the same"), before);
    });
    std::fs::remove_file(&path).expect("it was there");
}
