"""What people write today: clients trained one after another in plain PyTorch."""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedexperts.data import ClientData
from fedexperts.engine import scaled
from fedexperts.methods import Model, State


def with_loaders(
    server: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    clients: Sequence[ClientData],
    batch: int,
    lr: float,
    device: str,
) -> Callable[[], None]:
    """A round of FedAvg with a DataLoader per client, all clients evaluated, as most code has it."""

    def loader(index: object, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(scaled(inputs[index]), labels[index]), batch_size=batch, shuffle=shuffle)

    training = [loader(client.train, True) for client in clients]
    held_out = [loader(np.concatenate([client.validation, client.test]), False) for client in clients]

    def one_round() -> None:
        locals_ = []
        for data in training:
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            model.train()
            for x, y in data:
                x, y = x.to(device), y.to(device)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            locals_.append(model)
        with torch.no_grad():
            for name, parameter in server.named_parameters():
                parameter.copy_(torch.stack([m.get_parameter(name) for m in locals_]).mean(0))
        server.eval()
        with torch.no_grad():
            for data in held_out:
                sum((server(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in data)

    return one_round


def on_device(
    models: Sequence[Model],
    predict: Callable[[Model, Tensor, State], Tensor],
    inputs: Tensor,
    labels: Tensor,
    clients: Sequence[ClientData],
    batch: int,
    lr: float,
) -> Callable[[], None]:
    """A round of any method's local training without DataLoaders: data on the device, batches by index."""
    device = labels.device
    training = [torch.from_numpy(client.train).to(device) for client in clients]
    held_out = [torch.from_numpy(np.concatenate([client.validation, client.test])).to(device) for client in clients]

    def one_round() -> None:
        for model, train in zip(models, training, strict=True):
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for index in train[torch.randperm(len(train), device=device)].split(batch):
                optimizer.zero_grad()
                F.cross_entropy(predict(model, scaled(inputs[index]), {}), labels[index]).backward()
                optimizer.step()
        for model, index in zip(models, held_out, strict=True):
            model.eval()
            with torch.no_grad():
                (predict(model, scaled(inputs[index]), {}).argmax(1) == labels[index]).sum().item()

    return one_round


def one_model(model: nn.Module, inputs: Tensor, labels: Tensor, batch: int, lr: float) -> Callable[[], None]:
    """The limit: one model trained once over the same images, in batches as large as all clients' batches together.

    On a GPU its steps are captured as a graph, as ours are.
    """
    device = labels.device
    optimizer = torch.optim.SGD(model.parameters(), lr)
    index = torch.randperm(len(labels), device=device)[:batch].clone()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(scaled(inputs[index])), labels[index]).backward()
        optimizer.step()

    run = step
    if device.type == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay

    def one_epoch() -> None:
        order = torch.randperm(len(labels), device=device)
        for piece in order.split(batch):
            if len(piece) == batch:
                index.copy_(piece)
                run()

    one_epoch.keeps = step  # type: ignore[attr-defined] - a graph does not keep its tensors alive
    return one_epoch
