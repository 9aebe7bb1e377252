//! Explores every state that can be reached, the nearest first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::Hash;

/// What may be said of a step or of the state that it leads to: a property that it breaks, or something that has to be
/// possible.
pub type Fact = &'static str;

/// A system that moves in steps.
pub trait Model {
    /// All of it at one moment.
    type State: Copy + Eq + Hash;
    /// What happens in a step, for a counterexample.
    type What: Copy + Debug;

    /// What can be wanted: wherever somebody wants it, due steps alone must be able to lead to a step that grants it.
    const GOALS: &'static [Fact];

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// Every step that can be taken.
    fn steps(&self, state: &Self::State) -> Vec<Step<Self>>;

    /// What may be said of a state.
    fn facts(&self, state: &Self::State) -> Vec<Fact>;

    /// Whether somebody wants what is granted by a step of this goal.
    fn wants(&self, state: &Self::State, goal: Fact) -> bool;
}

/// One step.
#[derive(Debug)]
pub struct Step<M: Model + ?Sized> {
    pub(crate) what: M::What,
    /// The state after it.
    pub(crate) state: M::State,
    /// Whether it comes of itself in time: it is no fault, nobody has to give up or to come for it.
    pub(crate) is_due: bool,
    /// What it grants.
    pub(crate) grants: Option<Fact>,
    pub(crate) facts: Vec<Fact>,
}

impl<M: Model + ?Sized> Step<M> {
    pub(crate) fn due(what: M::What, state: M::State) -> Self {
        Self { what, state, is_due: true, grants: None, facts: Vec::new() }
    }

    /// One that may happen or not.
    pub(crate) fn chance(what: M::What, state: M::State) -> Self {
        Self { is_due: false, ..Self::due(what, state) }
    }
}

/// What an exploration has found.
#[derive(Debug)]
pub struct Explored {
    /// How many different states it has reached.
    pub states: usize,
    /// How many steps the farthest of them is away.
    pub depth: usize,
    /// The first of the facts that were watched for, and the shortest way there; for something wanted, to a state from
    /// which no due steps lead to it.
    pub found: Option<(Fact, Vec<String>)>,
}

/// Explores until one of the facts can be told, or all there is.
pub fn explore<M: Model>(model: &M, watched: &[Fact]) -> Explored {
    let mut graph = Graph::<M>::new(model.start());
    let mut at = 0;
    while let Some(state) = graph.states.get(at).copied() {
        for step in model.steps(&state) {
            let mut facts = step.facts.into_iter().chain(model.facts(&step.state));
            let fact = facts.find(|fact| watched.contains(fact));
            let to = graph.reach(at, step.what, step.state);
            if let Some(fact) = fact {
                let mut way = graph.way(at);
                way.push(format!("{:?}", step.what));
                return graph.explored(Some((fact, way)));
            }
            if step.is_due {
                graph.due.push((to, at));
                graph.granting.extend(step.grants.map(|goal| (goal, at)));
            }
        }
        at += 1;
    }
    graph.due.sort_unstable();
    let mut goals = M::GOALS.iter().filter(|goal| watched.contains(goal));
    let stuck = goals.find_map(|goal| Some((*goal, graph.stuck(model, goal)?)));
    graph.explored(stuck.map(|(goal, at)| (goal, graph.way(at))))
}

struct Graph<M: Model> {
    states: Vec<M::State>,
    places: HashMap<M::State, usize>,
    /// How each state but the first was reached: from which one, and by what.
    reached: Vec<Option<(usize, M::What)>>,
    /// The due steps, each as where it leads to and where it begins.
    due: Vec<(usize, usize)>,
    /// What is granted by due steps, and where they begin.
    granting: Vec<(Fact, usize)>,
}

impl<M: Model> Graph<M> {
    fn new(start: M::State) -> Self {
        Self {
            states: vec![start],
            places: HashMap::from([(start, 0)]),
            reached: vec![None],
            due: Vec::new(),
            granting: Vec::new(),
        }
    }

    /// The place of a state that a step leads to.
    fn reach(&mut self, from: usize, what: M::What, state: M::State) -> usize {
        match self.places.entry(state) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let place = *new.insert(self.states.len());
                self.states.push(state);
                self.reached.push(Some((from, what)));
                place
            }
        }
    }

    /// The shortest way to a state.
    fn way(&self, mut at: usize) -> Vec<String> {
        let mut way = Vec::new();
        while let Some((from, what)) = self.reached[at] {
            way.push(format!("{what:?}"));
            at = from;
        }
        way.reverse();
        way
    }

    fn explored(&self, found: Option<(Fact, Vec<String>)>) -> Explored {
        let depth = self.way(self.states.len() - 1).len();
        Explored { states: self.states.len(), depth, found }
    }

    /// The nearest state in which the goal is wanted, and no due steps lead to a step that grants it.
    fn stuck(&self, model: &M, goal: Fact) -> Option<usize> {
        let mut leads = vec![false; self.states.len()];
        let granting = self.granting.iter().filter(|(granted, _)| *granted == goal);
        let mut new: Vec<_> = granting.map(|(_, at)| *at).collect();
        while let Some(at) = new.pop() {
            if !std::mem::replace(&mut leads[at], true) {
                let begin = self.due.partition_point(|(to, _)| *to < at);
                let before = self.due[begin..].iter().take_while(|(to, _)| *to == at);
                new.extend(before.map(|(_, from)| *from));
            }
        }
        let is_stuck = |at: &usize| !leads[*at] && model.wants(&self.states[*at], goal);
        (0..self.states.len()).find(is_stuck)
    }
}
