#!/bin/sh
# Makes the ticket sets that come with dpltm (tickets/bundled), from public records alone.
#
#     DPLTM_DATA=FOLDER sh scripts/make_bundled.sh [FOLDER TO WRITE, tickets/bundled otherwise]
set -eu
home=${1:-tickets/bundled}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

make_set() {
    name=$1
    shift
    dpltm generate --provenance public --threads 1 --seed 0 --name "$name" --out "$scratch/$name" --quiet "$@"
    dpltm tickets export "$scratch/$name" --no-predictors --out "$home/$name" --quiet
}

make_set digits-mlp --dataset digits --model mlp:300,100 --iterations 1000 --batch-size 100
make_set kmnist-mlp --dataset kmnist-7k --model mlp:100,50 --iterations 2000
make_set kmnist-cnn --dataset kmnist-7k --model cnn --iterations 1000
dpltm tickets ls
